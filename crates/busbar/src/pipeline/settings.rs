//! Attributes of devices of other machines, which are written in threads.

use std::collections::VecDeque;
use std::time::Instant;

use rustix::io::Errno;

use crate::poll::Task;
use crate::wait::{Interest, Poller};
use crate::{Error, Result, stream};

/// Most values for one device that wait until those before are written.
const MOST: usize = 16;

/// A value for an attribute.
#[derive(Debug)]
pub(super) struct Setting {
    pub attribute: String,
    pub value: String,
    pub cause: Cause,
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// The index of the control.
    pub control: usize,
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
    /// Writes a value to a device, after those before it.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many wait; those of starting a thread.
    pub(super) fn add(&mut self, device: &str, setting: Setting, poller: &Poller) -> Result<()> {
        if let Some(writing) = self.0.iter_mut().find(|it| it.device == device) {
            if writing.waiting.len() >= MOST {
                let what = format!("`{}` of {device}", setting.attribute);
                let error = Error::new("write", what, Errno::BUSY);
                return Err(error.help(format!("{MOST} values wait for this device already")));
            }
            writing.waiting.push_back(setting);
            return Ok(());
        }
        let cause = setting.cause;
        let task = write(device, setting, poller)?;
        self.0.push(Writing { device: device.into(), task, cause, waiting: VecDeque::new() });
        Ok(())
    }

    /// What was written since the last call, or not and why. The next ones are begun.
    pub(super) fn take(&mut self, poller: &Poller) -> Vec<(Cause, Result<()>)> {
        let mut done = Vec::new();
        self.0.retain_mut(|writing| {
            let Some(result) = writing.task.take() else { return true };
            done.push((writing.cause, result));
            while let Some(next) = writing.waiting.pop_front() {
                writing.cause = next.cause;
                match write(&writing.device, next, poller) {
                    Ok(task) => {
                        writing.task = task;
                        return true;
                    }
                    Err(error) => done.push((writing.cause, Err(error))),
                }
            }
            false
        });
        done
    }
}

/// `poller` has an event once the value is written.
fn write(device: &str, setting: Setting, poller: &Poller) -> Result<Task<()>> {
    let Setting { attribute, value, .. } = setting;
    let (what, device) = (format!("`{attribute}` of {device}"), device.to_owned());
    let task = Task::start(&what, move || stream::set_attribute(&device, &attribute, &value))?;
    poller.add(&task, 0, Interest::READABLE.edge())?;
    Ok(task)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn setting(number: u32) -> Setting {
        let cause = Cause { control: 0, number: Some(number), since: Instant::now() };
        Setting { attribute: "gain".into(), value: "1".into(), cause }
    }

    #[test]
    fn values_for_a_server_that_does_not_answer_wait_up_to_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let device = format!("adc@ip:{}", listener.local_addr().unwrap());
        let (mut settings, poller) = (Settings::default(), Poller::new().unwrap());
        for number in 0..=16 {
            settings.add(&device, setting(number), &poller).unwrap();
        }
        let error = settings.add(&device, setting(17), &poller).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::BUSY));
        assert!(settings.take(&poller).is_empty());
        assert_eq!(settings.0.len(), 1, "one thread");
        // From now on, it closes each connection.
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let mut answered = Vec::new();
        while answered.len() < 17 {
            for (cause, result) in settings.take(&poller) {
                assert!(result.is_err());
                answered.push(cause.number.unwrap());
            }
            std::thread::yield_now();
        }
        assert!(answered.is_sorted());
        assert!(settings.0.is_empty());
    }
}
