//! How many requests were answered how, for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;

use super::Api;

const CLASSES: [&str; 4] = ["stream", "success", "refused", "failed"];

/// By class of the answer. Streams are counted when they begin.
#[derive(Default)]
pub struct Requests([AtomicU64; CLASSES.len()]);

impl Requests {
    fn count(&self, status: StatusCode) {
        let class = match status {
            StatusCode::SWITCHING_PROTOCOLS => 0,
            status if status.is_client_error() => 2,
            status if status.is_server_error() => 3,
            _ => 1,
        };
        if let Some(count) = self.0.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASSES.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

pub async fn count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let answer = next.run(request).await;
    api.context.requests.count(answer.status());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_their_class() {
        let requests = Requests::default();
        for code in [101, 200, 204, 404, 409, 500, 503] {
            requests.count(StatusCode::from_u16(code).unwrap());
        }
        let counted: Vec<_> = requests.counted().collect();
        assert_eq!(counted, [("stream", 1), ("success", 2), ("refused", 2), ("failed", 2)]);
    }
}
