//! Reads a request's body within a size and a deadline.

use std::error::Error;

use axum::body::{Body, HttpBody as _};
use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is too large")]
    TooLarge,
    #[error("the body was not sent in time")]
    Late,
    /// The connection ended, or the body's encoding is invalid.
    #[error("the body ended too early")]
    Cut,
}

/// Reads a body to its end. A body that announces more than `bytes_max` is refused unread.
pub async fn read_body(body: Body, bytes_max: usize, deadline: Instant) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLarge);
    }
    match timeout_at(deadline, collect(Limited::new(body, bytes_max))).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Ok(Err(_)) => Err(BodyError::Cut),
        Err(_) => Err(BodyError::Late),
    }
}

/// Each part is copied and freed, because a part of a single byte keeps its whole buffer alive.
async fn collect(body: Limited<Body>) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            whole.put(data);
        }
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::StreamExt as _;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[tokio::test]
    async fn parts_of_a_body_are_released_as_they_arrive() {
        /// The buffer that a part was read with.
        struct CountedBuffer(Vec<u8>, Arc<AtomicUsize>);
        impl AsRef<[u8]> for CountedBuffer {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for CountedBuffer {
            fn drop(&mut self) {
                self.1.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let live_buffers = Arc::new(AtomicUsize::new(0));
        let parts = futures::stream::iter(0..50u8).map({
            let live_buffers = live_buffers.clone();
            move |byte| {
                assert_eq!(live_buffers.fetch_add(1, Ordering::SeqCst), 0, "the previous part was freed");
                let part =
                    Bytes::from_owner(CountedBuffer(vec![byte; 100], live_buffers.clone())).slice(7..8);
                Ok::<_, Infallible>(part)
            }
        });
        let whole = read_body(Body::from_stream(parts), 50, soon()).await.unwrap();
        assert_eq!(whole, (0..50).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn a_body_has_a_size_and_a_deadline() {
        let parts = || futures::stream::iter(["four"; 3].map(Ok::<_, std::io::Error>));
        assert_eq!(read_body(Body::from("twelve bytes"), 12, soon()).await.unwrap(), "twelve bytes");
        assert_eq!(read_body(Body::from_stream(parts()), 12, soon()).await.unwrap(), "fourfourfour");
        for body in [Body::from("twelve bytes"), Body::from_stream(parts())] {
            assert!(matches!(read_body(body, 11, soon()).await, Err(BodyError::TooLarge)));
        }
        let cut = parts().chain(futures::stream::iter([Err(std::io::ErrorKind::ConnectionReset.into())]));
        assert!(matches!(read_body(Body::from_stream(cut), 99, soon()).await, Err(BodyError::Cut)));
        let silent = Body::from_stream(parts().chain(futures::stream::pending()));
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(matches!(read_body(silent, 99, deadline).await, Err(BodyError::Late)));
    }
}
