//! Endpoints: messages to and from a coprocessor.
