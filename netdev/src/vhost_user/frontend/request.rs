//! Sends requests to the backend.

use std::os::fd::BorrowedFd;

use crate::peer::channel::{Channel, ChannelError};
use crate::peer::header::Header;
use crate::vhost_user::message::Request;

/// Sends a request, with its descriptors. Errors: [`ChannelError`]; nothing is sent if the socket
/// [is full](ChannelError::is_full).
pub(super) fn send(
    channel: &Channel,
    request: &Request,
    needs_reply: bool,
    files: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    let (id, body) = request.encode();
    let len = u32::try_from(body.len()).expect("a few hundred bytes");
    channel.send(Header::of_request(id, len, needs_reply), &body, files)
}
