//! Work that blocks a thread.

/// Runs `work` on a thread for blocking work: it may take long, such as freeing much memory. If `work` panics, returns
/// the error that `bug` creates from a text.
///
/// # Errors
/// Those of the work.
pub async fn run_blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    bug: impl FnOnce(String) -> E,
) -> Result<T, E> {
    let outcome = tokio::task::spawn_blocking(work).await;
    // The panic is on stderr.
    outcome.unwrap_or_else(|_| {
        Err(bug(
            "the server failed while it executed the call; this is a bug in Engram: see the server's stderr".into(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_call_is_reported_as_a_bug() {
        let work = || -> Result<(), String> { panic!("expected by the test") };
        assert_eq!(
            run_blocking(work, |text| text).await.unwrap_err(),
            "the server failed while it executed the call; this is a bug in Engram: see the server's stderr"
        );
    }
}
