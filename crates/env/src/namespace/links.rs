//! Prepares the links of a new network namespace, over netlink.
//!
//! Chromium calls a machine offline that has no other link than loopback: `navigator.onLine` is
//! false, and pages behave as without a network. So there is a second link with an address; nothing
//! is behind it, and no route leads anywhere.
//!
//! Each change of an address or link makes Chromium close its connections, so nothing may change
//! once it runs: the links make no IPv6 addresses of their own, which would count a second later.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// The link beside loopback, with which `navigator.onLine` is true.
const LINK: &str = "furrow0\0";
/// The other end of it, where it has two.
const PEER: &str = "furrow1\0";

/// An address for documentation (RFC 5737), which no machine has.
const ADDRESS: [u8; 4] = [192, 0, 2, 1];

/// Index of loopback in every namespace.
const LOOPBACK: i32 = 1;

/// Time for a link to be up, which takes less than a millisecond.
const UP_DEADLINE: Duration = Duration::from_secs(2);

// Numbers of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/veth.h and linux/if_addr.h.
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Bytes of a message's head: length, kind, flags, sequence, sender.
const HEAD_BYTES: usize = 16;

/// Bytes of an answer: a head, an error number and what it is about.
const ANSWER_BYTES: usize = 1024;

/// Starts loopback, and adds the other link.
pub(super) fn prepare() -> io::Result<()> {
    // No protocol is NETLINK_ROUTE.
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    ask(&kernel, RTM_NEWLINK, 0, &link(LOOPBACK, IFF_UP))?;
    let created = NLM_F_CREATE | NLM_F_EXCL;
    // Kernels are built with either, and almost all with both. A pair has a carrier once both ends
    // are up.
    let both = ask(&kernel, RTM_NEWLINK, created, &dummy())
        .map(|()| &[LINK][..])
        .or_else(|_| ask(&kernel, RTM_NEWLINK, created, &pair()).map(|()| &[LINK, PEER][..]))
        .map_err(|error| io::Error::new(error.kind(), format!("no link of kind dummy or veth: {error}")))?;
    for name in both {
        let index = index_of(&kernel, name)?;
        match ask(&kernel, RTM_NEWLINK, 0, &without_ipv6_addresses(index)) {
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {}
            set => set?,
        }
        ask(&kernel, RTM_NEWLINK, 0, &link(index, IFF_UP))?;
    }
    let index = index_of(&kernel, LINK)?;
    ask(&kernel, RTM_NEWADDR, created, &address(index))?;
    wait_until_running(&kernel, index)
}

/// The kernel finds out a little later that a link which is up has a carrier.
#[expect(clippy::disallowed_methods, reason = "a process of its own, which has nothing else to do")]
fn wait_until_running(kernel: &OwnedFd, index: i32) -> io::Result<()> {
    let began = Instant::now();
    loop {
        send_message(kernel, RTM_GETLINK, 0, &link(index, 0))?;
        let answer = receive(kernel)?;
        if flags_of(&answer)? & IFF_RUNNING != 0 {
            return Ok(());
        }
        if began.elapsed() > UP_DEADLINE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the second link has no carrier"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The flags of a link, in the answer to `RTM_GETLINK`.
fn flags_of(answer: &[u8]) -> io::Result<u32> {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let flags = answer.get(24..28).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
    match (kind, flags) {
        (Some(RTM_NEWLINK), Some(flags)) => Ok(flags),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer describes no link")),
    }
}

fn index_of(kernel: &OwnedFd, name: &str) -> io::Result<i32> {
    Ok(name_to_index(kernel, name.trim_end_matches('\0'))?.cast_signed())
}

/// Sends a message that is acknowledged, and waits for the kernel's answer.
fn ask(kernel: &OwnedFd, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
    send_message(kernel, kind, NLM_F_ACK | flags, payload)?;
    result_of(&receive(kernel)?)
}

fn send_message(kernel: &OwnedFd, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
    let length = (HEAD_BYTES + payload.len()) as u32;
    let mut message = Vec::with_capacity(HEAD_BYTES + payload.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(payload);
    send(kernel, &message, SendFlags::empty())?;
    Ok(())
}

/// The kernel's answer, which is there at once. Of a long one, the beginning.
fn receive(kernel: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; ANSWER_BYTES];
    let (received, _) = recv(kernel, &mut answer, RecvFlags::empty())?;
    answer.truncate(received);
    Ok(answer)
}

/// What an answer says: an error message with number 0 is the acknowledgement.
fn result_of(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let error = answer.get(16..20).and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is no acknowledgement")),
    }
}

/// `struct ifinfomsg` of a link that is to have these flags.
fn link(index: i32, flags: u32) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Of the flags, those that change.
    message.extend(flags.to_ne_bytes());
    message
}

/// A link that makes no IPv6 address of its own.
fn without_ipv6_addresses(index: i32) -> Vec<u8> {
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    let family = attribute(AddressFamily::INET6.as_raw(), &mode);
    [link(index, 0), attribute(IFLA_AF_SPEC, &family)].concat()
}

fn dummy() -> Vec<u8> {
    new_link(&attribute(IFLA_INFO_KIND, b"dummy\0"))
}

/// Two links that are each other's cable.
fn pair() -> Vec<u8> {
    let peer = [link(0, 0), attribute(IFLA_IFNAME, PEER.as_bytes())].concat();
    let data = attribute(IFLA_INFO_DATA, &attribute(VETH_INFO_PEER, &peer));
    new_link(&[attribute(IFLA_INFO_KIND, b"veth\0"), data].concat())
}

fn new_link(info: &[u8]) -> Vec<u8> {
    [link(0, 0), attribute(IFLA_IFNAME, LINK.as_bytes()), attribute(IFLA_LINKINFO, info)].concat()
}

/// `struct ifaddrmsg` and the address: a network of one.
fn address(index: i32) -> Vec<u8> {
    let mut message = vec![AddressFamily::INET.as_raw() as u8, 32, 0, 0];
    message.extend(index.to_ne_bytes());
    message.extend(attribute(IFA_LOCAL, &ADDRESS));
    message.extend(attribute(IFA_ADDRESS, &ADDRESS));
    message
}

/// An attribute: its length without padding, its kind, its value, padding to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (4 + value.len()) as u16;
    let mut bytes = Vec::with_capacity(4 + value.len() + 3);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_say_their_own_length() {
        assert_eq!(attribute(3, b"abc\0"), [&8u16.to_ne_bytes()[..], &3u16.to_ne_bytes(), b"abc\0"].concat());
        let padded = attribute(1, b"veth\0");
        assert_eq!((padded.len(), &padded[..2]), (12, &9u16.to_ne_bytes()[..]));
        assert!(padded.ends_with(b"veth\0\0\0\0"));
    }

    #[test]
    fn an_answer_is_an_acknowledgement_an_error_or_neither() {
        let answer = |kind: u16, error: i32| {
            let mut bytes = vec![0; 20];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16..20].copy_from_slice(&error.to_ne_bytes());
            result_of(&bytes).map_err(|error| error.raw_os_error())
        };
        assert_eq!(answer(NLMSG_ERROR, 0), Ok(()));
        assert_eq!(answer(NLMSG_ERROR, -1), Err(Some(1)));
        assert_eq!(answer(NLMSG_ERROR, i32::MIN), Err(Some(i32::MIN)));
        assert_eq!(answer(16, 0), Err(None));
        assert!(result_of(&[]).is_err() && result_of(&[0; 19]).is_err());
    }
}
