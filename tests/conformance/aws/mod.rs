//! S3 and `DynamoDB`, and what both have in common: signed requests, and who signs them.

mod credentials;
mod dynamodb;
mod s3;
mod web;

use http::{HeaderMap, Method, Request};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest as _};

use crate::support::Server;

/// What a service says to one signed request of the tests' own.
pub struct Said {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Said {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A request by the user who may do everything.
pub async fn ask(
    service: &str,
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Said {
    let url = format!("{}{path}", server.url());
    let mut request = Request::builder().method(method).uri(&url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let hash = reqsign_core::hash::hex_sha256(&body);
    request = request.header("x-amz-content-sha256", hash);
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    let keys = Credential {
        access_key_id: server.told("/accessKey").to_owned(),
        secret_access_key: server.told("/secretKey").to_owned(),
        ..Credential::default()
    };
    RequestSigner::new(service, server.told("/region"))
        .sign_request(&Context::new(), &mut parts, Some(&keys), None)
        .await
        .unwrap();
    let answer = web::client()
        .request(parts.method, url)
        .headers(parts.headers)
        .body(body)
        .send()
        .await
        .unwrap();
    Said {
        status: answer.status().as_u16(),
        headers: answer.headers().clone(),
        body: answer.bytes().await.unwrap().to_vec(),
    }
}

/// As it stands in a URL.
pub fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut result, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            result.push(byte.into());
        } else {
            write!(result, "%{byte:02X}").unwrap();
        }
        result
    })
}

/// A store's URL, with the keys of the user who may do everything.
pub fn url(scheme: &str, server: &Server, place: &str, port: u16) -> String {
    format!(
        "{scheme}://{}:{}@{place}?region={}&endpoint=http://127.0.0.1:{port}",
        encoded(server.told("/accessKey")),
        encoded(server.told("/secretKey")),
        server.told("/region"),
    )
}
