//! How the library that knows AWS's ways to credentials reads files and asks servers: as everything else here
//! does.

use std::path::Path;
use std::slice;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use reqsign_core::{Error, FileRead, HttpSend, Result};

use super::address::Endpoint;
use super::surroundings::Surroundings;
use crate::backend::StoreOptions;
use crate::backend::blocking::read_text;
use crate::backend::http::{Asked, Http, is_near};
use crate::backend::tls::Tls;

/// What is on this machine, or beside it, answers at once or not at all.
const NEAR: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        let text = read_text(Path::new(path)).await;
        text.map(String::into_bytes).map_err(Error::config_invalid)
    }
}

#[derive(Debug)]
pub(super) struct Requests {
    /// What stands in for AWS's own server that gives roles.
    sts: Option<String>,
}

impl Requests {
    pub fn new(around: &Surroundings) -> Self {
        Self {
            sts: around.endpoint("STS").map(str::to_owned),
        }
    }

    fn place(&self, uri: &Uri) -> std::result::Result<Endpoint, String> {
        let host = uri.host().unwrap_or_default();
        match &self.sts {
            Some(sts) if host.starts_with("sts.") => Endpoint::parse(sts),
            _ => {
                let scheme = uri.scheme_str().unwrap_or("http");
                let authority = uri.authority().map_or("", |authority| authority.as_str());
                Endpoint::parse(&format!("{scheme}://{authority}"))
            }
        }
    }
}

impl HttpSend for Requests {
    async fn http_send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        let (parts, body) = request.into_parts();
        let place = self.place(&parts.uri).map_err(Error::config_invalid)?;
        let limit = if is_near(&place.host.name) { NEAR } else { FAR };
        let mut options = StoreOptions::new(".");
        options.connect_timeout = limit;
        options.request_timeout = limit;
        let tls = place.tls.then(Tls::default);
        let http = Http::new(
            slice::from_ref(&place.host),
            place.default_port(),
            tls,
            &options,
        )
        .map_err(|bad| Error::config_invalid(format!("its URL must {}", bad.rule)))?;
        let asked = Asked {
            method: parts.method,
            path: parts.uri.path_and_query().map_or("/", |path| path.as_str()),
            headers: parts.headers,
            body: body.to_vec(),
            repeatable: true,
        };
        let answer = http.ask(&asked, |_| false).await;
        let answer =
            answer.map_err(|broken| Error::unexpected(broken.message).set_retryable(true))?;
        let mut response = Response::new(Bytes::from(answer.body));
        *response.status_mut() = http_status(answer.status)?;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}

fn http_status(status: u16) -> Result<http::StatusCode> {
    http::StatusCode::from_u16(status).map_err(|error| Error::unexpected(error.to_string()))
}
