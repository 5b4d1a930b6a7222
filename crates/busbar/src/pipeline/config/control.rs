//! Controls.

use std::time::Duration;

use crate::pipeline::message::Action;

/// The default deadline of a reaction.
pub(in crate::pipeline) const REACTION: Duration = Duration::from_millis(10);

/// A coprocessor that controls sources.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlConfig {
    /// Its name.
    pub name: String,
    /// The name of its service, see [`message`](crate::pipeline::message).
    pub endpoint: String,
    /// The sources that it starts, stops and tunes.
    pub sources: Vec<String>,
    /// The sinks that it tunes: converters.
    pub sinks: Vec<String>,
    /// How long a reaction to one of its messages may take; longer ones are counted.
    pub deadline: Duration,
    /// The reactions to its events.
    pub on: Vec<Reaction>,
}

/// The reaction to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reaction {
    /// The name of the event.
    pub event: String,
    /// The actions, in this order.
    pub actions: Vec<Action>,
}

impl ControlConfig {
    /// A coprocessor's service that controls `sources`, without reactions to its events.
    #[must_use]
    pub fn new<T: Into<String>>(
        name: impl Into<String>,
        endpoint: impl Into<String>,
        sources: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            name: name.into(),
            endpoint: endpoint.into(),
            sources: sources.into_iter().map(Into::into).collect(),
            sinks: Vec::new(),
            deadline: REACTION,
            on: Vec::new(),
        }
    }
}

impl Reaction {
    /// A reaction to an event.
    #[must_use]
    pub fn new(event: impl Into<String>, actions: Vec<Action>) -> Self {
        Self { event: event.into(), actions }
    }
}
