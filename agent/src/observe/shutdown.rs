//! The one signal that ends every server task.

use tokio::sync::watch;

/// Ends the servers that hold the [`Shutdown`]s made from it, at [`ShutdownTrigger::fire`] or when
/// dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Tells a task when to end. Clones wait for the same trigger.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// A trigger that has not fired, and what waits for it.
pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (ShutdownTrigger(sender), Shutdown(receiver))
}

impl ShutdownTrigger {
    pub fn fire(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Returns once the trigger has fired or is gone; at once when that was before the call.
    pub async fn requested(&mut self) {
        // An error means that the trigger was dropped, which ends the servers too.
        let _ = self.0.wait_for(|fired| *fired).await;
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}
