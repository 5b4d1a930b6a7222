//! The events of a pipeline.

use std::collections::HashMap;

use super::counters::Event;
use crate::Error;

/// Most events that are kept until they are taken.
const MOST_EVENTS: usize = 1024;

/// Events that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Log {
    events: Vec<Event>,
    /// The last error of each node that has not worked since.
    troubles: HashMap<String, String>,
}

impl Log {
    /// All events since the last call. The oldest are left out if there were more than [`MOST_EVENTS`].
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn event(&mut self, node: &str, what: &'static str, text: String) {
        if self.events.len() >= MOST_EVENTS {
            self.events.remove(0);
        }
        self.events.push(Event { node: node.to_owned(), what, text });
    }

    /// A node has failed and goes on. The same error again is no event until the node has worked.
    pub(super) fn trouble(&mut self, node: &str, error: &Error) {
        let text = error.to_string();
        if self.troubles.get(node) != Some(&text) {
            self.event(node, "trouble", text.clone());
            self.troubles.insert(node.to_owned(), text);
        }
    }

    /// A node works.
    pub(super) fn works(&mut self, node: &str) {
        if !self.troubles.is_empty() {
            self.troubles.remove(node);
        }
    }

    /// A node was opened again, or a coprocessor has come.
    pub(super) fn opened(&mut self, node: &str, what: &'static str) {
        self.works(node);
        self.event(node, what, String::new());
    }
}
