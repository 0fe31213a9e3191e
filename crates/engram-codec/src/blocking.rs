//! Runs work that blocks its thread.

/// Runs `work` on Tokio's threads for blocking work, because it can take long: for example, if it frees much memory. If
/// `work` panics, or the runtime shuts down before `work` runs, returns an error that `error` creates from a text.
///
/// # Errors
/// Those of `work`, and the above.
pub async fn run_blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    error: impl FnOnce(String) -> E,
) -> Result<T, E> {
    let outcome = tokio::task::spawn_blocking(work).await;
    outcome.unwrap_or_else(|failure| {
        let text = if failure.is_cancelled() {
            "the server stopped before it executed the call"
        } else {
            // The panic is on stderr.
            "the server failed while it executed the call; this is a bug in Engram: see the server's stderr"
        };
        Err(error(text.into()))
    })
}

/// Runs `work` on this thread. If it takes long, the runtime first moves the thread's other tasks to another thread.
pub fn run_in_place<T>(takes_long: bool, work: impl FnOnce() -> T) -> T {
    if takes_long {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_call_is_reported_as_a_bug() {
        let work = || -> Result<(), String> { panic!("expected by the test") };
        assert_eq!(
            run_blocking(work, |text| text).await.unwrap_err(),
            "the server failed while it executed the call; this is a bug in Engram: see the server's stderr"
        );
    }

    #[test]
    fn a_call_after_a_shutdown_is_not_reported_as_a_bug() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let _guard = handle.enter();
        let text = "the server stopped before it executed the call";
        assert_eq!(
            run_blocking(|| Ok(()), |text| text).now_or_never(),
            Some(Err(text.into()))
        );
    }
}
