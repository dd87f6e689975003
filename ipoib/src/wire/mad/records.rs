//! Records that a station on an IPoIB link exchanges with the subnet administrator.

use super::super::address::{Gid, Lid, PKey, QKey, Qpn};
use super::super::{TooShort, take};
use super::DATA_LEN;

/// Membership states of a port in a group (RFC 4392 §1.3.1.1): bits that may be combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JoinState(pub u8);

impl JoinState {
    /// Sends and receives; the group exists as long as it has such a member.
    pub const FULL_MEMBER: Self = Self(1);
    /// Sends and receives, without keeping the group alive.
    pub const NON_MEMBER: Self = Self(2);
    /// Sends only.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);

    /// Returns both states combined.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns each of the states.
    pub fn each(self) -> impl Iterator<Item = Self> {
        let states = [Self::FULL_MEMBER, Self::NON_MEMBER, Self::SEND_ONLY_NON_MEMBER];
        states.into_iter().filter(move |state| self.has(*state))
    }

    /// Returns the states without the others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if one of these states is set.
    #[must_use]
    pub const fn has(self, any_of: Self) -> bool {
        self.0 & any_of.0 != 0
    }

    /// Returns true if the port is not in the group.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Masks of the components of a [`McMemberRecord`] that a request gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberMask;

impl MemberMask {
    /// MGID, port GID, P_Key, join state: to join an existing group, or to leave one.
    pub const JOIN: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 16;
    /// The MGID alone: to query a group.
    pub const GROUP: u64 = 1 << 0;
    /// Also a new group's Q_Key, MTU, traffic class, rate, service level, flow label, hop limit.
    pub const CREATE: u64 = Self::JOIN
        | 1 << 2
        | 1 << 4
        | 1 << 5
        | 1 << 6
        | 1 << 8
        | 1 << 9
        | 1 << 12
        | 1 << 13
        | 1 << 14;
}

/// A group, or a port's membership in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McMemberRecord {
    /// The group.
    pub mgid: Gid,
    /// The member.
    pub port_gid: Gid,
    /// Q_Key of all its datagrams.
    pub q_key: QKey,
    /// LID of the group.
    pub mlid: Lid,
    /// Largest payload, coded (4: 2048 bytes, 5: 4096), with its selector in the two upper bits.
    pub mtu: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// The partition.
    pub p_key: PKey,
    /// Static rate, coded, with its selector.
    pub rate: u8,
    /// Lifetime of a packet in the subnet, coded, with its selector.
    pub packet_life_time: u8,
    /// Service level: four bits.
    pub service_level: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Hop limit: routers that may forward a packet.
    pub hop_limit: u8,
    /// Scope: four bits.
    pub scope: u8,
    /// Membership states of the port.
    pub join_state: JoinState,
}

const SELECT_EXACTLY: u8 = 2 << 6;

impl McMemberRecord {
    /// Returns the largest packet payload of the group in bytes; `None` for an invalid code.
    // spec: IPOIB-ARCH-7
    #[must_use]
    pub const fn mtu_octets(&self) -> Option<usize> {
        match self.mtu & 0x3f {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }

    /// Returns the code of exactly `octets` bytes; `None` if InfiniBand has none for it.
    // spec: IPOIB-ARCH-7
    #[must_use]
    pub const fn mtu_code(octets: usize) -> Option<u8> {
        let code = match octets {
            256 => 1,
            512 => 2,
            1024 => 3,
            2048 => 4,
            4096 => 5,
            _ => return None,
        };
        Some(SELECT_EXACTLY | code)
    }

    /// Parses the record at the start of a datagram's data.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Self, TooShort> {
        let rest = &mut data;
        let (mgid, port_gid) = (Gid(take(rest)?), Gid(take(rest)?));
        let q_key = QKey(u32::from_be_bytes(take(rest)?));
        let mlid = Lid(u16::from_be_bytes(take(rest)?));
        let [mtu, traffic_class] = take(rest)?;
        let p_key = PKey(u16::from_be_bytes(take(rest)?));
        let [rate, packet_life_time] = take(rest)?;
        let (service_level, flow_label, hop_limit) = level_of(u32::from_be_bytes(take(rest)?));
        let [membership, _, _, _] = take(rest)?;
        Ok(Self {
            mgid,
            port_gid,
            q_key,
            mlid,
            mtu,
            traffic_class,
            p_key,
            rate,
            packet_life_time,
            service_level,
            flow_label,
            hop_limit,
            scope: membership >> 4,
            join_state: JoinState(membership & 0x0f),
        })
    }

    /// Returns the bytes, as a datagram's data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_LEN] {
        fill([
            &self.mgid.0,
            &self.port_gid.0,
            &self.q_key.0.to_be_bytes(),
            &self.mlid.0.to_be_bytes(),
            &[self.mtu, self.traffic_class],
            &self.p_key.0.to_be_bytes(),
            &[self.rate, self.packet_life_time],
            &of_level(self.service_level, self.flow_label, self.hop_limit),
            &[self.scope << 4 | self.join_state.0 & 0x0f],
        ])
    }
}

/// Masks of the components of a [`PathRecord`] that a request gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMask;

impl PathMask {
    /// Destination and source GID, reversible, number of paths, P_Key.
    pub const QUERY: u64 = 1 << 2 | 1 << 3 | 1 << 11 | 1 << 12 | 1 << 13;
}

/// Path from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// GID of the destination.
    pub dgid: Gid,
    /// GID of the source.
    pub sgid: Gid,
    /// LID of the destination.
    pub dlid: Lid,
    /// LID of the source.
    pub slid: Lid,
    /// The partition.
    pub p_key: PKey,
    /// Service level: four bits.
    pub service_level: u8,
    /// Largest packet payload, coded, with its selector.
    pub mtu: u8,
    /// Static rate, coded, with its selector.
    pub rate: u8,
    /// Lifetime of a packet on the path, coded, with its selector.
    pub packet_life_time: u8,
}

const REVERSIBLE_ONE: u8 = 1 << 7 | 1;

impl PathRecord {
    /// Returns a query for one path from `sgid` to `dgid`.
    #[must_use]
    pub const fn query(sgid: Gid, dgid: Gid, p_key: PKey) -> Self {
        Self {
            dgid,
            sgid,
            dlid: Lid(0),
            slid: Lid(0),
            p_key,
            service_level: 0,
            mtu: 0,
            rate: 0,
            packet_life_time: 0,
        }
    }

    /// Parses the record at the start of a datagram's data.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Self, TooShort> {
        let rest = &mut data;
        let _service_id: [u8; 8] = take(rest)?;
        let (dgid, sgid) = (Gid(take(rest)?), Gid(take(rest)?));
        let dlid = Lid(u16::from_be_bytes(take(rest)?));
        let slid = Lid(u16::from_be_bytes(take(rest)?));
        let _flow_and_hops: [u8; 4] = take(rest)?;
        let [_class, _reversible, p0, p1, _, level, mtu, rate, packet_life_time] = take(rest)?;
        Ok(Self {
            dgid,
            sgid,
            dlid,
            slid,
            p_key: PKey(u16::from_be_bytes([p0, p1])),
            service_level: level & 0x0f,
            mtu,
            rate,
            packet_life_time,
        })
    }

    /// Returns the bytes, as a datagram's data: one path, for both directions.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_LEN] {
        fill([
            &[0; 8],
            &self.dgid.0,
            &self.sgid.0,
            &self.dlid.0.to_be_bytes(),
            &self.slid.0.to_be_bytes(),
            &[0; 4],
            &[0, REVERSIBLE_ONE],
            &self.p_key.0.to_be_bytes(),
            &[0, self.service_level & 0x0f, self.mtu, self.rate, self.packet_life_time],
        ])
    }
}

/// Subject of a Notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trap {
    /// A port has joined the subnet.
    GidIn,
    /// A port has left the subnet.
    GidOut,
    /// A group was created.
    GroupCreated,
    /// A group was deleted.
    GroupDeleted,
    /// Unknown trap.
    Unknown(u16),
}

impl Trap {
    /// Returns the trap of this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        match number {
            // spec: IPOIB-ARCH-10
            64 => Self::GidIn,
            65 => Self::GidOut,
            66 => Self::GroupCreated,
            67 => Self::GroupDeleted,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::GidIn => 64,
            Self::GidOut => 65,
            Self::GroupCreated => 66,
            Self::GroupDeleted => 67,
            Self::Unknown(number) => number,
        }
    }
}

/// Subscription to a trap, for any GID (RFC 4391 §10 requires 66 and 67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InformInfo {
    /// Trap to subscribe to.
    pub trap: Trap,
    /// True to subscribe, false to unsubscribe.
    pub subscribe: bool,
    /// Queue pair that Reports are sent to.
    pub qpn: Qpn,
}

/// The subnet manager sends all traps of groups and GIDs.
const PRODUCER_CLASS_MANAGER: [u8; 3] = [0, 0, 4];
/// Timeout of an answer to a Report: 4.096 us times two to this power.
const RESPONSE_TIME: u8 = 18;

impl InformInfo {
    /// Returns the bytes, as a datagram's data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_LEN] {
        let [_, qpn @ ..] = self.qpn.bits().to_be_bytes();
        fill([
            // Any GID and any LID.
            &[0; 16],
            &[0xff, 0xff, 0, 0, 0, 0],
            &[1, u8::from(self.subscribe)],
            // Any type.
            &[0xff, 0xff],
            &self.trap.number().to_be_bytes(),
            &qpn,
            &[RESPONSE_TIME],
            &[0],
            &PRODUCER_CLASS_MANAGER,
        ])
    }

    /// Parses the record at the start of a datagram's data.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Self, TooShort> {
        let rest = &mut data;
        let _gid_and_lids: [u8; 22] = take(rest)?;
        let [_generic, subscribe, _, _, t0, t1, q0, q1, q2, _] = take(rest)?;
        Ok(Self {
            trap: Trap::from_number(u16::from_be_bytes([t0, t1])),
            subscribe: subscribe & 1 != 0,
            qpn: Qpn::from_bits(u32::from_be_bytes([0, q0, q1, q2])),
        })
    }
}

/// Contents of a Report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The event.
    pub trap: Trap,
    /// The port or group that it concerns.
    pub gid: Gid,
}

impl Notice {
    /// Parses the record at the start of a datagram's data; `None` if it is of another producer.
    ///
    /// # Errors
    /// If there are too few bytes.
    pub fn parse(mut data: &[u8]) -> Result<Option<Self>, TooShort> {
        let rest = &mut data;
        let [generic, producer @ ..] = take::<4>(rest)?;
        let trap = Trap::from_number(u16::from_be_bytes(take(rest)?));
        let _lid_count_and_reserved: [u8; 10] = take(rest)?;
        let gid = Gid(take(rest)?);
        let of_manager = generic & 0x80 != 0 && producer == PRODUCER_CLASS_MANAGER;
        Ok(of_manager.then_some(Self { trap, gid }))
    }

    /// Returns the bytes, as a datagram's data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_LEN] {
        fill([
            // Generic, of type informational.
            &[1 << 7 | 4],
            &PRODUCER_CLASS_MANAGER,
            &self.trap.number().to_be_bytes(),
            &[0; 10],
            &self.gid.0,
        ])
    }
}

#[expect(clippy::cast_possible_truncation, reason = "four and eight bits")]
const fn level_of(word: u32) -> (u8, u32, u8) {
    ((word >> 28) as u8, word >> 8 & 0x000f_ffff, word as u8)
}

fn of_level(service_level: u8, flow_label: u32, hop_limit: u8) -> [u8; 4] {
    (u32::from(service_level & 0x0f) << 28 | (flow_label & 0x000f_ffff) << 8 | u32::from(hop_limit))
        .to_be_bytes()
}

fn fill<const N: usize>(parts: [&[u8]; N]) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    for (octet, value) in data.iter_mut().zip(parts.into_iter().flatten()) {
        *octet = *value;
    }
    data
}
