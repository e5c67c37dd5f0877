// SPDX-License-Identifier: GPL-2.0-or-later
//! HTTP server. Every user of this machine can reach the port, so the time, memory and descriptors
//! that a client may use are limited.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use holdfast_bpf::service::Watchdog;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::collector::Ask;

/// Limit of connections. At the limit one is dropped, see [`Stage::is_in_the_way`].
pub(super) const MAX_CONNECTIONS: usize = 16;
/// A scraper sends its request once it is connected; it may be preempted in between, but not for
/// long. Connections without a request delay the next one for no longer than this.
const ASK_TIMEOUT: Duration = Duration::from_millis(100);
/// A scraper reads its page at once.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks for room, while every connection waits for its page.
const ROOM_INTERVAL: Duration = Duration::from_millis(10);
/// Hyper's smallest; a scraper's header has some 300 bytes.
const MAX_HEADER_BYTES: usize = 8192;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Less than Prometheus' timeout of 10 s, so that Prometheus gets the reason.
const PAGE_TIMEOUT: Duration = Duration::from_secs(8);
/// The whole connection: header, page and writing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause after an error of accept(), such as too many open files; connections time out meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Serves pages from the collector.
pub(super) async fn serve(listener: TcpListener, collector: mpsc::Sender<Ask>) -> Infallible {
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(RETRY_INTERVAL).await;
            continue;
        };
        make_room(&mut connections).await;
        let stage = Arc::new(Mutex::new(Stage::Asking(Instant::now())));
        let conversation = converse(stream, collector.clone(), Arc::clone(&stage));
        let task = tokio::spawn(timeout(CONNECTION_TIMEOUT, conversation)).abort_handle();
        connections.push(Connection { task, stage });
        // Requests that have arrived are read before the next connection is accepted.
        yield_now().await;
    }
}

/// Tells the service manager's watchdog that the collector answers, as long as it does.
pub(super) async fn stay_alive(collector: mpsc::Sender<Ask>) -> Infallible {
    let mut watchdog = Watchdog::of_this_process();
    let Some(interval) = watchdog.interval() else { return std::future::pending().await };
    loop {
        if page(&collector).await.is_some() {
            watchdog.alive();
        }
        sleep(interval).await;
    }
}

/// The stage of a connection.
#[derive(Clone, Copy)]
enum Stage {
    /// It has connected, and sent no whole request yet.
    Asking(Instant),
    /// It waits for its page, for no longer than [`PAGE_TIMEOUT`].
    Waiting,
    /// It has been given its answer.
    Reading(Instant),
}

struct Connection {
    task: AbortHandle,
    stage: Arc<Mutex<Stage>>,
}

impl Stage {
    /// May another connection take its place at `now`? Scrapers send and read at once: connections
    /// that send or read nothing do not keep a scraper out, and no other client gets a scraper
    /// dropped that is being answered.
    fn is_in_the_way(self, now: Instant) -> bool {
        let lasts_longer = |since, limit| now.saturating_duration_since(since) > limit;
        match self {
            Stage::Asking(since) => lasts_longer(since, ASK_TIMEOUT),
            Stage::Waiting => false,
            Stage::Reading(since) => lasts_longer(since, READ_TIMEOUT),
        }
    }
}

impl Connection {
    fn is_in_the_way(&self) -> bool {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).is_in_the_way(Instant::now())
    }
}

/// Waits until there is room for a connection, and drops the oldest of those that are in the way.
async fn make_room(connections: &mut Vec<Connection>) {
    loop {
        connections.retain(|connection| !connection.task.is_finished());
        if connections.len() < MAX_CONNECTIONS {
            return;
        }
        if let Some(i) = connections.iter().position(Connection::is_in_the_way) {
            connections.remove(i).task.abort();
            return;
        }
        sleep(ROOM_INTERVAL).await;
    }
}

/// One request and its answer. The body of a request is never read.
async fn converse(stream: TcpStream, collector: mpsc::Sender<Ask>, stage: Arc<Mutex<Stage>>) {
    let enter = |next| *stage.lock().unwrap_or_else(PoisonError::into_inner) = next;
    let service = service_fn(async |request| {
        enter(Stage::Waiting);
        let response = respond(request, &collector).await;
        enter(Stage::Reading(Instant::now()));
        response
    });
    // A client that disconnects or sends nonsense is no failure of the server.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_and_one_being_answered_are_not_dropped() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert!(!Stage::Asking(start).is_in_the_way(after(90)));
        assert!(Stage::Asking(start).is_in_the_way(after(110)));
        assert!(!Stage::Waiting.is_in_the_way(after(1_000_000)));
        assert!(!Stage::Reading(start).is_in_the_way(after(990)));
        assert!(Stage::Reading(start).is_in_the_way(after(1010)));
    }
}
