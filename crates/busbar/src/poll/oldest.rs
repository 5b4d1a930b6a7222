//! A set that is readable once the oldest of several transfers has ended.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use super::set::Set;
use crate::Result;

/// The fence that is in a set: that of the oldest transfer, or of one before it.
///
/// A fence stays there after its transfer has ended, until it is known that the oldest of the others has not. So many
/// transfers that end at once cost one change of the set.
#[derive(Debug, Default)]
pub(crate) struct Oldest(Option<Arc<OwnedFd>>);

impl Oldest {
    /// Watches the fence of the oldest transfer, unless another one is in the set.
    pub(crate) fn watch(&mut self, set: &Set, fence: &Arc<OwnedFd>) -> Result<()> {
        if self.0.is_none() {
            set.add(fence, 0, EventFlags::IN)?;
            self.0 = Some(Arc::clone(fence));
        }
        Ok(())
    }

    /// Takes any other fence than this one out of the set. To be called when the oldest transfer, which has this fence,
    /// has not ended, or there is none.
    pub(crate) fn keep(&mut self, set: &Set, fence: Option<&Arc<OwnedFd>>) {
        let is_kept =
            |watched: &Arc<OwnedFd>| fence.is_some_and(|fence| Arc::ptr_eq(fence, watched));
        if let Some(watched) = self.0.take_if(|watched| !is_kept(watched)) {
            // It was added.
            let _ = set.remove(&watched);
        }
    }

    /// Takes the fence out of the set.
    pub(crate) fn clear(&mut self, set: &Set) {
        self.keep(set, None);
    }
}
