//! Changed settings of a device, and their earlier values.

use std::sync::Arc;

use busbar_uapi::ethtool::NTUPLE;
use busbar_uapi::netdev::ethtool::SPLIT_ENABLED;
use rustix::io::Errno;

use super::ethtool::{Device, Split};
use super::netdev::Netdev;
use crate::Result;

/// Changes to a device, which are undone in reverse.
///
/// Each change is noted before it is made: after an error it may have been made too.
#[derive(Debug)]
pub(super) struct Settings {
    device: Arc<Device>,
    split: Split,
    undo: Vec<Undo>,
}

/// The setting before a change.
#[derive(Debug)]
enum Undo {
    /// Rules were switched off.
    Rules,
    /// The setting of header split.
    Split(u8),
    /// The table that was found, and the one that was set.
    Table { found: Vec<u32>, set: Vec<u32> },
}

impl Settings {
    pub(super) fn new(device: Arc<Device>) -> Result<Self> {
        let split = Split::open(&device)?;
        Ok(Self { device, split, undo: Vec::new() })
    }

    /// Switches on n-tuple rules.
    pub(super) fn obey_rules(&mut self) -> Result<()> {
        let failed = |errno| self.device.failed("switch on the n-tuple rules of", errno);
        let flags = self.device.flags().map_err(failed)?;
        if flags & NTUPLE == 0 {
            self.undo.push(Undo::Rules);
            self.device.set_flags(flags | NTUPLE).map_err(failed)?;
        }
        Ok(())
    }

    /// Switches on header split.
    pub(super) fn split_headers(&mut self) -> Result<()> {
        let tried = "switch on tcp-data-split of";
        let found = self.split.get().map_err(|errno| self.device.failed(tried, errno))?;
        if found == SPLIT_ENABLED {
            return Ok(());
        }
        self.undo.push(Undo::Split(found));
        self.split.set(SPLIT_ENABLED).map_err(|errno| self.refused(tried, errno))
    }

    /// Moves connections that the hash sends to `queues` to `others`.
    pub(super) fn keep_away(&mut self, queues: &[u32], others: &[u32]) -> Result<()> {
        let tried = "set the table for receive-side scaling of";
        let failed = |errno| self.device.failed(tried, errno);
        let found = self.device.indirection().map_err(failed)?;
        let set = away(&found, queues, others);
        if set != found {
            self.undo.push(Undo::Table { found, set: set.clone() });
            self.device.set_indirection(&set).map_err(failed)?;
        }
        Ok(())
    }

    /// Undoes all changes, even after an error. Returns the first error.
    pub(super) fn undo(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(undo) = self.undo.pop() {
            result = result.and(self.undo_one(undo));
        }
        result
    }

    fn undo_one(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Rules => self
                .ignore_rules()
                .map_err(|errno| self.device.failed("switch off the n-tuple rules of", errno)),
            Undo::Split(found) => match self.split.set(found) {
                // Another binding needs it. vnic says so by EBUSY, the core of newer kernels by EINVAL.
                Ok(()) | Err(Errno::BUSY) => Ok(()),
                Err(Errno::INVAL) if self.is_bound() => Ok(()),
                Err(errno) => Err(self.refused("set back tcp-data-split of", errno)),
            },
            Undo::Table { found, set } => self.set_back(&found, &set).map_err(|errno| {
                self.device.failed("set back the table for receive-side scaling of", errno)
            }),
        }
    }

    /// Whether any queue of the device is bound.
    fn is_bound(&self) -> bool {
        let queues = Netdev::open().and_then(|mut netdev| netdev.queues(&self.device));
        queues.is_ok_and(|queues| queues.iter().any(|queue| queue.is_bound))
    }

    /// Rules that are left belong to other users, who need the setting.
    fn ignore_rules(&self) -> Result<(), Errno> {
        if self.device.rule_table()?.used > 0 {
            return Ok(());
        }
        self.device.set_flags(self.device.flags()? & !NTUPLE)
    }

    /// Leaves a table that another user has set since.
    fn set_back(&self, found: &[u32], set: &[u32]) -> Result<(), Errno> {
        if self.device.indirection()? != set {
            return Ok(());
        }
        // An even table may be the driver's default, which follows the number of queues: try that first.
        let is_even = is_even(found);
        self.device.set_indirection(if is_even { &[] } else { found })?;
        if is_even && self.device.indirection()? != found {
            return self.device.set_indirection(found);
        }
        Ok(())
    }

    fn refused(&self, tried: &str, errno: Errno) -> crate::Error {
        let error = self.device.failed(tried, errno);
        match self.split.explanation() {
            Some(explanation) if errno != Errno::PERM => {
                error.help(format!("the kernel says: {explanation}"))
            }
            _ => error,
        }
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        // An error cannot be reported here; `Receiver::close` returns it.
        let _ = self.undo();
    }
}

/// The table with `others` instead of `queues`.
fn away(table: &[u32], queues: &[u32], others: &[u32]) -> Vec<u32> {
    let mut next = others.iter().cycle();
    let entry = |queue: &u32| {
        if queues.contains(queue) { *next.next().unwrap_or(queue) } else { *queue }
    };
    table.iter().map(entry).collect()
}

/// Whether it is the default of drivers: all queues in turn.
fn is_even(table: &[u32]) -> bool {
    let count = table.iter().max().map_or(1, |last| *last as usize + 1);
    table.iter().enumerate().all(|(index, queue)| index % count == *queue as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_to_the_queues_goes_elsewhere() {
        let table = [0, 1, 2, 3, 0, 1, 2, 3];
        assert_eq!(away(&table, &[3], &[0, 1, 2]), [0, 1, 2, 0, 0, 1, 2, 1]);
        assert_eq!(away(&table, &[2, 3], &[0]), [0, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(away(&[0, 0], &[1], &[0]), [0, 0]);
    }

    #[test]
    fn an_even_table_is_known() {
        assert!(is_even(&[0, 1, 2, 0, 1, 2, 0]) && is_even(&[0, 0]) && is_even(&[0, 1]));
        for other in [&[1, 1][..], &[0, 0, 1], &[0, 1, 1, 0], &[0, 2, 0, 2]] {
            assert!(!is_even(other), "{other:?}");
        }
    }
}
