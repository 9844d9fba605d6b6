//! The function that users call most, by hand: Node-API itself, without a wrapper that converts
//! arguments, which would cost more than the clock that it reads.

use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use napi::bindgen_prelude::{FromNapiValue, Unknown};
use napi::{Env, check_status, sys};

use super::environment::Seat;

/// A JavaScript function `() => boolean` over a seat.
pub fn function(env: Env, seat: Rc<Seat>) -> napi::Result<Unknown<'static>> {
    let mut function = ptr::null_mut();
    let data = Rc::into_raw(seat).cast_mut().cast::<c_void>();
    // SAFETY: `env` is the current environment. `data` is a counted reference of our own, which the
    // finalizer gives back once the function can no longer be called.
    unsafe {
        let name = c"isLeader";
        check_status!(sys::napi_create_function(
            env.raw(),
            name.as_ptr(),
            name.count_bytes().cast_signed(),
            Some(is_leader),
            data,
            &raw mut function,
        ))?;
        check_status!(sys::napi_add_finalizer(
            env.raw(),
            function,
            data,
            Some(finalize),
            ptr::null_mut(),
            ptr::null_mut(),
        ))?;
        Unknown::from_napi_value(env.raw(), function)
    }
}

unsafe extern "C" fn is_leader(
    env: sys::napi_env,
    info: sys::napi_callback_info,
) -> sys::napi_value {
    let mut data = ptr::null_mut();
    let mut answer = ptr::null_mut();
    // SAFETY: Node-API calls this with its own `env` and `info`; `data` is what `function` gave, alive
    // until its finalizer ran, and only ever used on this thread.
    unsafe {
        sys::napi_get_cb_info(
            env,
            info,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut data,
        );
        let seat = &*data.cast::<Seat>();
        sys::napi_get_boolean(env, seat.is_led(), &raw mut answer);
    }
    answer
}

unsafe extern "C" fn finalize(_env: sys::napi_env, data: *mut c_void, _hint: *mut c_void) {
    // SAFETY: gives back the one reference that `function` made; runs once, on the environment's thread.
    drop(unsafe { Rc::from_raw(data.cast::<Seat>()) });
}
