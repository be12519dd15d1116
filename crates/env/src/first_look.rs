//! Shows the first screenshot of a trajectory to observers, while its policy thinks.
//!
//! The first step may take a minute, and only its record holds the screenshot. Nothing depends on
//! what is shown: a trajectory is the same with and without observers.

use std::pin::pin;

use furrow_rollout::{Assignment, Observation};

use crate::coordinator_link::CoordinatorLink;

/// Sends the screenshot of an observation, if observers want it.
pub(crate) fn show_first(
    is_wanted: bool,
    link: &CoordinatorLink,
    assignment: &Assignment,
    observation: &Observation,
) -> impl Future<Output = ()> + use<> {
    let call = is_wanted.then(|| (link.clone(), assignment.proof(), observation.screenshot.bytes.clone()));
    async move {
        if let Some((link, proof, screenshot)) = call {
            link.show_first(&proof, screenshot).await;
        }
    }
}

/// Works, and does something else as long as the work waits.
pub(crate) async fn beside<T>(work: impl Future<Output = T>, aside: impl Future<Output = ()>) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = aside => {}
    }
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn what_is_beside_never_holds_up_the_work() {
        assert_eq!(beside(ready(1), pending()).await, 1);
        assert_eq!(beside(ready(2), ready(())).await, 2);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let aside = async move { sender.send(3).unwrap() };
        assert_eq!(beside(receiver, aside).await, Ok(3), "it runs while the work waits");
    }
}
