//! A firmware service controlled by a test.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use busbar_coprocessor::service::{Port, Service};

/// The address of the other side, and the bytes.
pub type Message = (u32, Vec<u8>);

/// Passes each message to the test, and sends the test's messages.
pub struct Messenger {
    name: &'static str,
    came: Sender<Message>,
    to_send: Receiver<Message>,
    next: Instant,
}

impl Messenger {
    /// The service, its received messages, and the messages for it to send.
    pub fn new(name: &'static str) -> (Self, Receiver<Message>, Sender<Message>) {
        let ((came, messages), (commands, to_send)) = (channel(), channel());
        (Self { name, came, to_send, next: Instant::now() }, messages, commands)
    }
}

impl Service for Messenger {
    fn name(&self) -> &'static str {
        self.name
    }

    fn on_message(&mut self, _: &mut Port<'_>, from: u32, data: &[u8]) -> busbar::Result<()> {
        let _ = self.came.send((from, data.to_vec()));
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> busbar::Result<()> {
        self.next = now + Duration::from_millis(1);
        while port.room() > 0 {
            let Ok((to, data)) = self.to_send.try_recv() else { break };
            port.send(to, &data)?;
        }
        Ok(())
    }
}
