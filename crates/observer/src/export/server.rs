// SPDX-License-Identifier: GPL-2.0-or-later
//! HTTP for whoever can reach the port, which every user of this machine can: what one client may take,
//! of time, memory and descriptors, is limited.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::collector::Ask;

/// More than that and the oldest is dropped: a scraper asks at once, and is not kept out by those that
/// hold connections and ask nothing.
const MAX_CONNECTIONS: usize = 16;
/// Hyper's smallest; a scraper's header has some 300 bytes.
const MAX_HEADER_BYTES: usize = 8192;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Less than the 10 s after which Prometheus gives up, so that it is told why.
const PAGE_TIMEOUT: Duration = Duration::from_secs(8);
/// All of it: header, page and writing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// After an error of accept(), such as too many open files: those time out.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Serves pages, for which it asks the collector.
pub(super) async fn serve(listener: TcpListener, collector: mpsc::Sender<Ask>) -> Infallible {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == MAX_CONNECTIONS {
            connections.pop_front().inspect(AbortHandle::abort);
        }
        let connection = timeout(CONNECTION_TIMEOUT, converse(stream, collector.clone()));
        connections.push_back(tokio::spawn(connection).abort_handle());
    }
}

/// One request and its answer. The body of a request is never read.
async fn converse(stream: TcpStream, collector: mpsc::Sender<Ask>) {
    let service = service_fn(|request| respond(request, &collector));
    // A client that went away or talks nonsense is no failure of ours.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(
    request: Request<Incoming>,
    collector: &mpsc::Sender<Ask>,
) -> Result<Response<String>, Infallible> {
    let may = matches!(*request.method(), Method::GET | Method::HEAD);
    Ok(match request.uri().path() {
        "/" | "/metrics" if !may => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        "/" => text(StatusCode::OK, "Holdfast: see /metrics\n"),
        "/metrics" => match timeout(PAGE_TIMEOUT, page(collector)).await {
            Ok(Some(page)) => {
                let mut response = text(StatusCode::OK, page);
                let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            _ => text(StatusCode::SERVICE_UNAVAILABLE, "the collector does not answer\n"),
        },
        _ => text(StatusCode::NOT_FOUND, "not found\n"),
    })
}

async fn page(collector: &mpsc::Sender<Ask>) -> Option<String> {
    let (send, page) = oneshot::channel();
    collector.send(send).await.ok()?;
    page.await.ok()
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
