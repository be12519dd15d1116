//! The page time of a trajectory: the actions of a step and the documents that they load get a
//! share of it; otherwise the clock of the tab in front stands still.

use std::time::Duration;

use furrow_rollout::{Outcome, OutcomeName, PageClock};
use futures::FutureExt;
use tokio::sync::oneshot;

use super::tabs::ContextTabs;
use crate::chromium::clock::{self, StepTime};
use crate::chromium::navigate::{self, NavigationOutcome, NavigationWatch};
use crate::chromium::tab::BrowserTab;
use crate::environment::EnvironmentError;

/// Most documents in a row that navigate away before their time is over; a page that redirects in a
/// circle is stopped where it is.
const DOCUMENTS_MAX: usize = 4;

/// What happened to a page that may have navigated by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowResult {
    /// The document is still there.
    SameDocument,
    /// The document is still there, because the address it was left for did not answer.
    TimedOut,
    /// Another document replaced it and got its time.
    Completed,
    /// Another document replaced it, but is not completely loaded.
    Unfinished,
}

pub(super) struct PageTime {
    clock: PageClock,
    /// Longest wait for a document that is loading.
    load_timeout: Duration,
    /// Whether the page's clock is under control.
    is_stopped: bool,
    /// Page time of the current step.
    step_time: StepTime,
    /// Watches for navigations of the page itself in that step, while its clock is under control.
    arrival: Option<NavigationWatch>,
}

impl PageTime {
    /// The clock of a task's pages, which runs free until [`PageTime::take_control`].
    pub(super) fn new(clock: PageClock, load_timeout: Duration) -> Self {
        Self { clock, load_timeout, is_stopped: false, step_time: StepTime::new(0, 1), arrival: None }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Stops the page's clock, unless the task uses the wall clock.
    pub(super) async fn take_control(&mut self, tabs: &ContextTabs) -> Result<(), EnvironmentError> {
        if let PageClock::Virtual { .. } = self.clock {
            clock::stop(tabs.active()?).await?;
            self.is_stopped = true;
            self.step_time = self.step_time_for(1);
        }
        Ok(())
    }

    /// Begins a step with this many actions.
    pub(super) async fn begin_step(
        &mut self,
        tabs: &ContextTabs,
        actions: usize,
    ) -> Result<(), EnvironmentError> {
        self.step_time = self.step_time_for(actions);
        self.arrival = match self.is_stopped {
            true => Some(NavigationWatch::listen(tabs.active()?).await?),
            false => None,
        };
        Ok(())
    }

    /// Page time of a step with this many actions.
    fn step_time_for(&self, actions: usize) -> StepTime {
        match self.clock {
            PageClock::Virtual { step_millis } => StepTime::new(step_millis, actions),
            PageClock::Real => StepTime::new(0, actions),
        }
    }

    /// Loads a page. A loading page needs its clock: while the clock stands, no frame of the new
    /// document is ever drawn. Therefore a new document gets the action's share of page time. The
    /// old document gets none of it, because it stays if no new one comes: for an address within
    /// it, a download, or a server that does not answer.
    pub(super) async fn load(
        &mut self,
        tabs: &ContextTabs,
        load: impl AsyncFnOnce(&ContextTabs) -> Result<Outcome, EnvironmentError>,
    ) -> Result<Outcome, EnvironmentError> {
        if !self.is_stopped {
            return load(tabs).await;
        }
        let mut time = self.step_time;
        let load_timeout = self.load_timeout;
        let mut arrival = NavigationWatch::listen(tabs.active()?).await?;
        let (over, load_done) = oneshot::channel();
        let loading = async {
            let outcome = load(tabs).await;
            // The listener no longer has to wait.
            over.send(()).ok();
            outcome
        };
        let living = async {
            let came = arrival.wait_new_document(load_done.map(drop), load_timeout).await;
            // The new document may navigate by itself, but not before it is loaded.
            let next = NavigationWatch::listen(tabs.active()?).await?;
            let completed = !came || self.grant_document_time(tabs, time.take_share()).await?;
            Ok::<_, EnvironmentError>((completed, next))
        };
        let (outcome, living) = tokio::join!(loading, living);
        self.step_time = time;
        let completed = living.map(|(completed, next)| {
            self.arrival = Some(next);
            completed
        });
        // A failed load also leaves a running clock, which must be stopped unless the page no
        // longer answers.
        if !tabs.active()?.has_hung() {
            clock::stop(tabs.active()?).await?;
        }
        match (outcome?, completed?) {
            (outcome, false) if outcome.name == OutcomeName::Ok => {
                Ok(Outcome::with_detail(OutcomeName::NotSettled, "the page was still loading"))
            }
            (outcome, _) => Ok(outcome),
        }
    }

    /// Grants page time to a new document. Returns whether the document used all of it: one whose
    /// requests are never answered is shown as far as it loaded.
    async fn grant_document_time(&self, tabs: &ContextTabs, millis: u32) -> Result<bool, EnvironmentError> {
        let tab = tabs.active()?;
        let completed = clock::advance_loading(tab, millis, self.load_timeout).await?;
        navigate::wait_for_content(tab).await?;
        Ok(completed)
    }

    /// While page time stands still, wheel events and moves with a pressed button are never
    /// answered: page time is granted while they run.
    pub(super) async fn grant_during(
        &mut self,
        tabs: &ContextTabs,
        input: impl AsyncFnOnce(&BrowserTab) -> Result<(), EnvironmentError>,
    ) -> Result<(), EnvironmentError> {
        self.grant_if(true, tabs, input).await
    }

    /// The same if the input needs it; other input is delivered while page time stands still.
    pub(super) async fn grant_if(
        &mut self,
        is_needed: bool,
        tabs: &ContextTabs,
        input: impl AsyncFnOnce(&BrowserTab) -> Result<(), EnvironmentError>,
    ) -> Result<(), EnvironmentError> {
        if !self.is_stopped || !is_needed {
            return input(tabs.active()?).await;
        }
        let share = self.step_time.take_share();
        let tab = tabs.active()?;
        let (passed, done) = tokio::join!(clock::advance(tab, share), input(tab));
        passed.and(done)
    }

    /// Waits a number of seconds in place of the action's share of the step's time. With 0 the page
    /// is only observed again, after the time of a step.
    pub(super) async fn wait(&mut self, tabs: &ContextTabs, seconds: u8) -> Result<(), EnvironmentError> {
        match self.is_stopped {
            true if seconds == 0 => Ok(()),
            _ => {
                self.replace_share();
                self.pass(tabs, u32::from(seconds) * 1000).await
            }
        }
    }

    /// The action lets time pass itself, in place of its share of the step's time.
    pub(super) fn replace_share(&mut self) {
        self.step_time.take_share();
    }

    /// Lets time pass on the page while an action lasts.
    pub(super) async fn pass(&self, tabs: &ContextTabs, millis: u32) -> Result<(), EnvironmentError> {
        if self.is_stopped {
            return clock::advance(tabs.active()?, millis).await;
        }
        tokio::time::sleep(Duration::from_millis(millis.into())).await;
        Ok(())
    }

    /// Prepares the page for the next action of the same step.
    pub(super) async fn continue_step(&mut self, tabs: &ContextTabs) -> Result<(), EnvironmentError> {
        if self.is_stopped {
            self.follow_navigation(tabs).await?;
        }
        Ok(())
    }

    /// Ends a step: grants what its actions left. Returns whether the page is loaded.
    pub(super) async fn end_step(&mut self, tabs: &ContextTabs) -> Result<bool, EnvironmentError> {
        let rest = self.step_time.take_rest();
        // The time of the next step, which may be one without an action.
        self.step_time = self.step_time_for(1);
        // Navigations are followed before, because a page that is being left answers nothing, and
        // after, because the page may have navigated meanwhile.
        let before = self.follow_navigation(tabs).await?;
        if matches!(before, FollowResult::Completed | FollowResult::Unfinished) {
            return Ok(before == FollowResult::Completed);
        }
        clock::advance(tabs.active()?, rest).await?;
        let after = self.follow_navigation(tabs).await?;
        Ok(![before, after]
            .iter()
            .any(|left| matches!(left, FollowResult::TimedOut | FollowResult::Unfinished)))
    }

    /// Follows a navigation that the page itself started, by a link, a form or a script: while time
    /// stands still no document loads, and none is drawn before it is loaded. Therefore a new
    /// document gets the time of a step, as if the policy had requested it.
    async fn follow_navigation(&mut self, tabs: &ContextTabs) -> Result<FollowResult, EnvironmentError> {
        let PageClock::Virtual { step_millis } = self.clock else {
            return Ok(FollowResult::SameDocument);
        };
        let mut arrival = match self.arrival.take() {
            Some(arrival) if arrival.watches_tab(tabs.active()?) => arrival,
            // Another tab came to the front: nothing has begun in it since.
            _ => NavigationWatch::listen(tabs.active()?).await?,
        };
        let mut followed = FollowResult::SameDocument;
        for _ in 0..DOCUMENTS_MAX {
            let left = arrival.wait_outcome(tabs.active()?).await?;
            match left {
                NavigationOutcome::NotStarted
                | NavigationOutcome::SameDocument
                | NavigationOutcome::TimedOut => {
                    self.arrival = Some(arrival);
                    return Ok(if left == NavigationOutcome::TimedOut {
                        FollowResult::TimedOut
                    } else {
                        followed
                    });
                }
                NavigationOutcome::NewDocument => {
                    arrival = NavigationWatch::listen(tabs.active()?).await?;
                    followed = match self.grant_document_time(tabs, step_millis).await? {
                        true => FollowResult::Completed,
                        false => FollowResult::Unfinished,
                    };
                    clock::stop(tabs.active()?).await?;
                }
            }
        }
        navigate::stop_loading(tabs.active()?).await?;
        Ok(FollowResult::Unfinished)
    }
}
