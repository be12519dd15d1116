//! A connection with a write timeout, which hyper lacks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail if no byte goes out within a timeout. Reads are unchanged.
#[derive(Debug)]
pub(crate) struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Timer of the pending write.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream; `timeout` is the longest time that a write may wait until a part of it goes
    /// out.
    pub(crate) fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, waits: None }
    }

    /// Returns the result of a write, or an error if the write has waited for too long.
    fn fail_if_stalled<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waits = None;
            return poll;
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(waits.as_mut().poll(cx));
        // A caller that polls again waits for another full timeout.
        waits.as_mut().reset(Instant::now() + self.timeout);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer stopped reading: no byte of a write went out in time",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.fail_if_stalled(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.fail_if_stalled(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn an_unread_write_fails_and_a_slow_one_does_not() {
        const TIMEOUT: Duration = Duration::from_millis(300);
        let (ours, mut theirs) = duplex(8);
        let mut ours = WriteTimeout::new(ours, TIMEOUT);
        let reading = async {
            for _ in 0..8 {
                sleep(TIMEOUT / 6).await;
                theirs.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(ours.write_all(&[7; 64]), reading);
        written.unwrap();
        let refused = ours.write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }
}
