//! A response that has not arrived yet.

use std::pin::Pin;
use std::task::{Context, Poll};

use engram_core::Result;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::reconnecting_stream::closed_error;

/// A future of a response; any thread may wait for it.
#[derive(Debug)]
pub struct PendingResponse<T> {
    receiver: oneshot::Receiver<Result<T>>,
}

impl<T> PendingResponse<T> {
    pub(crate) fn new(receiver: oneshot::Receiver<Result<T>>) -> Self {
        Self { receiver }
    }
}

impl<T: Send + 'static> PendingResponse<T> {
    /// Starts a task that computes the response. It runs to its end, even if nothing waits for the response.
    pub(crate) fn spawn(
        runtime: &Handle,
        response: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = oneshot::channel();
        runtime.spawn(async move {
            let _ = sender.send(response.await);
        });
        Self::new(receiver)
    }
}

impl<T> Future for PendingResponse<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let receiver = Pin::new(&mut self.get_mut().receiver);
        receiver
            .poll(context)
            .map(|received| received.unwrap_or_else(|_| Err(closed_error())))
    }
}
