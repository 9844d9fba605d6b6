/* What an honest isLeader() must cost at least: one call through Node-API that compares the clock that counts
 * suspension with a deadline. No framework, so this is the floor for the benchmark. */
#include <node_api.h>
#include <stdint.h>

#ifdef __APPLE__
#include <mach/mach_time.h>
static uint64_t now(void) { return mach_continuous_time(); }
#else
#include <time.h>
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
#endif

static volatile uint64_t deadline = UINT64_MAX;

static napi_value before_deadline(napi_env env, napi_callback_info info) {
  (void)info;
  napi_value answer;
  napi_get_boolean(env, now() < deadline, &answer);
  return answer;
}

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "beforeDeadline", NAPI_AUTO_LENGTH, before_deadline, NULL, &function);
  napi_set_named_property(env, exports, "beforeDeadline", function);
  return exports;
}
