//! What is known of an opened stream.

use super::device::{Device, Direction};
use super::format::Format;
use super::setup::Interface;
use super::values::Scale;
use crate::Result;
use crate::block::Memory;

/// What does not change while a stream is open.
#[derive(Debug)]
pub(super) struct About {
    pub format: Format,
    pub interface: Interface,
    pub memory: Memory,
    pub blocks: usize,
    pub block_len: usize,
    /// The device, which is asked for attributes that may change.
    pub device: Option<Box<(Device, Direction)>>,
}

impl About {
    /// How to convert the values of a channel into a unit.
    pub(super) fn scale(&self, channel: &str) -> Result<Scale> {
        let channel = self.format.channel(channel)?;
        let Some(device) = &self.device else { return Ok(Scale::default()) };
        let (device, direction) = &**device;
        Ok(device.scale(*direction, &channel.name))
    }
}
