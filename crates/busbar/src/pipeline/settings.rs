//! Attributes of devices of other machines, which are written in threads, and what has to wait for that.

use std::collections::VecDeque;
use std::time::Instant;

use rustix::io::Errno;

use super::message::Action;
use crate::poll::Task;
use crate::wait::{Interest, Poller};
use crate::{Error, Result, stream};

/// Most actions for one device that wait until values before them are written.
const MOST: usize = 16;

/// A value for an attribute, or a start or a stop that comes after one.
#[derive(Debug)]
pub(super) struct Setting {
    pub action: Action,
    pub cause: Cause,
}

/// What has become of a setting.
#[derive(Debug)]
pub(super) enum Done {
    Written(Result<()>),
    /// A start or a stop: the values before it are written.
    Due(Action),
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// The index of the control.
    pub control: usize,
    /// How often it had come: what a coprocessor asked for before it started anew is not answered.
    pub opens: u64,
    /// The number of its command; `None`: an event, which is not answered.
    pub number: Option<u32>,
    /// When the reaction began.
    pub since: Instant,
}

/// Values that are being written: for each device one after the other, so it has one thread at most.
#[derive(Debug, Default)]
pub(super) struct Settings(Vec<Writing>);

#[derive(Debug)]
struct Writing {
    /// The device, without `iio:`.
    device: String,
    task: Task<()>,
    cause: Cause,
    waiting: VecDeque<Setting>,
}

impl Settings {
    /// Whether values for a device are not written yet.
    pub(super) fn are_waiting(&self, device: &str) -> bool {
        self.0.iter().any(|it| it.device == device)
    }

    /// Writes a value to a device, after those before it. A start or a stop has to have one [before](Self::are_waiting) it.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many wait; those of starting a thread.
    pub(super) fn add(&mut self, device: &str, setting: Setting, poller: &Poller) -> Result<()> {
        if let Some(writing) = self.0.iter_mut().find(|it| it.device == device) {
            if writing.waiting.len() >= MOST {
                let error = Error::new("do", format!("`{}`", setting.action), Errno::BUSY);
                return Err(error.help(format!("{MOST} commands wait for this device already")));
            }
            writing.waiting.push_back(setting);
            return Ok(());
        }
        let cause = setting.cause;
        let task = write(device, setting.action, poller)?;
        self.0.push(Writing { device: device.into(), task, cause, waiting: VecDeque::new() });
        Ok(())
    }

    /// What was written since the last call, or not and why, and what is due. The next values are begun.
    pub(super) fn take(&mut self, poller: &Poller) -> Vec<(Cause, Done)> {
        let mut done = Vec::new();
        self.0.retain_mut(|writing| {
            let Some(result) = writing.task.take() else { return true };
            done.push((writing.cause, Done::Written(result)));
            while let Some(Setting { action, cause }) = writing.waiting.pop_front() {
                if !matches!(action, Action::Set { .. }) {
                    done.push((cause, Done::Due(action)));
                    continue;
                }
                match write(&writing.device, action, poller) {
                    Ok(task) => {
                        (writing.task, writing.cause) = (task, cause);
                        return true;
                    }
                    Err(error) => done.push((cause, Done::Written(Err(error)))),
                }
            }
            false
        });
        done
    }
}

/// `poller` has an event once the value is written.
fn write(device: &str, action: Action, poller: &Poller) -> Result<Task<()>> {
    let (what, device) = (format!("`{action}`"), device.to_owned());
    let task = Task::start(&what, move || match action {
        Action::Set { attribute, value, .. } => {
            stream::set_attribute(&device, attribute.as_str(), value.as_str())
        }
        Action::Start(_) | Action::Stop(_) => Ok(()),
    })?;
    poller.add(&task, 0, Interest::READABLE.edge())?;
    Ok(task)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::message::{Name, Report};
    use super::*;

    fn setting(number: u32, action: &str) -> Setting {
        let cause = Cause { control: 0, opens: 1, number: Some(number), since: Instant::now() };
        match Report::decode(format!("{number} {action}").as_bytes()).unwrap() {
            Report::Command { action, .. } => Setting { action, cause },
            Report::Event { .. } => unreachable!("a command"),
        }
    }

    #[test]
    fn values_for_a_server_that_does_not_answer_wait_up_to_a_limit_and_a_start_with_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let device = format!("adc@ip:{}", listener.local_addr().unwrap());
        let (mut settings, poller) = (Settings::default(), Poller::new().unwrap());
        assert!(!settings.are_waiting(&device));
        for number in 0..=15 {
            settings.add(&device, setting(number, "set adc gain 1"), &poller).unwrap();
        }
        assert!(settings.are_waiting(&device));
        settings.add(&device, setting(16, "start adc"), &poller).unwrap();
        for action in ["set adc gain 2", "stop adc"] {
            let error = settings.add(&device, setting(17, action), &poller).unwrap_err();
            assert_eq!(error.errno(), Some(Errno::BUSY));
        }
        assert!(settings.take(&poller).is_empty());
        assert_eq!(settings.0.len(), 1, "one thread");
        // From now on, it closes each connection.
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let mut answered = Vec::new();
        while answered.len() < 17 {
            for (cause, done) in settings.take(&poller) {
                match done {
                    Done::Written(result) => assert!(result.is_err() && answered.len() < 16),
                    Done::Due(action) => {
                        let name: Name = "adc".parse().unwrap();
                        assert!(action == Action::Start(name) && answered.len() == 16);
                    }
                }
                answered.push(cause.number.unwrap());
            }
            std::thread::yield_now();
        }
        assert!(answered.is_sorted());
        assert!(!settings.are_waiting(&device));
    }
}
