//! Management datagrams of subnet administration: 256 bytes.
//!
//! ```text
//!  0 base version | class | class version | method | status (2) | specific (2) | transaction (8)
//! 16 attribute (2) | reserved (2) | modifier (4) | 24 RMPP (12) | 36 SM_Key (8)
//! 44 attribute offset (2) | reserved (2) | 48 component mask (8) | 56 data (200)
//! ```

mod records;

pub use records::{
    InformInfo, JoinState, McMemberRecord, MemberMask, Notice, PathMask, PathRecord, Trap,
};

use super::{TooShort, head};

/// Length of a management datagram, in bytes.
pub const MAD_LEN: usize = 256;
/// Offset of the data of a subnet-administration datagram.
pub const DATA_AT: usize = 56;
/// Length of the data, in bytes.
pub const DATA_LEN: usize = MAD_LEN - DATA_AT;

const CLASS_SUBNET_ADM: u8 = 3;

/// Method of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads one record.
    Get,
    /// Writes one record, for example to join a group.
    Set,
    /// Answers Get or Set.
    GetResp,
    /// Reports an event: a Notice.
    Report,
    /// Acknowledges a Report.
    ReportResp,
    /// Deletes a record, for example to leave a group.
    Delete,
    /// Answers Delete.
    DeleteResp,
    /// Unknown method.
    Unknown(u8),
}

impl Method {
    /// Returns the method of this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            0x01 => Self::Get,
            0x02 => Self::Set,
            0x81 => Self::GetResp,
            0x06 => Self::Report,
            0x86 => Self::ReportResp,
            0x15 => Self::Delete,
            0x95 => Self::DeleteResp,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Get => 0x01,
            Self::Set => 0x02,
            Self::GetResp => 0x81,
            Self::Report => 0x06,
            Self::ReportResp => 0x86,
            Self::Delete => 0x15,
            Self::DeleteResp => 0x95,
            Self::Unknown(number) => number,
        }
    }
}

/// Kind of record in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// [`Notice`].
    Notice,
    /// [`InformInfo`].
    InformInfo,
    /// [`PathRecord`].
    PathRecord,
    /// [`McMemberRecord`].
    McMemberRecord,
    /// Unknown attribute.
    Unknown(u16),
}

impl Attribute {
    /// Returns the attribute of this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        match number {
            0x0002 => Self::Notice,
            0x0003 => Self::InformInfo,
            0x0035 => Self::PathRecord,
            0x0038 => Self::McMemberRecord,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Notice => 0x0002,
            Self::InformInfo => 0x0003,
            Self::PathRecord => 0x0035,
            Self::McMemberRecord => 0x0038,
            Self::Unknown(number) => number,
        }
    }
}

/// Status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// The request was executed.
    pub const SUCCESS: Self = Self(0);
    /// The administrator is busy: ask again later.
    pub const BUSY: Self = Self(1);
    /// The request is invalid: for a missing group, or with another key, MTU or partition.
    pub const REQ_INVALID: Self = Self(0x0200);
    /// There is no such record.
    pub const NO_RECORDS: Self = Self(0x0300);
    /// The request lacks parameters for creating a group.
    pub const INSUFFICIENT_COMPONENTS: Self = Self(0x0600);
}

/// Datagram of subnet administration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaMad {
    /// Kind of request or answer.
    pub method: Method,
    /// Result of the request; 0 in requests.
    pub status: Status,
    /// Identifies the request of an answer.
    pub transaction: u64,
    /// Kind of its data.
    pub attribute: Attribute,
    /// Attribute modifier.
    pub modifier: u32,
    /// Mask of the record's components that are given.
    pub component_mask: u64,
    /// The record.
    pub data: [u8; DATA_LEN],
}

/// Reasons why bytes are not such a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Too few bytes.
    #[error(transparent)]
    Short(#[from] TooShort),
    /// Another class or version.
    #[error("not a datagram of subnet administration")]
    Class,
}

impl SaMad {
    /// Creates a request or report with this record.
    #[must_use]
    pub fn new(method: Method, attribute: Attribute, transaction: u64, record: &[u8]) -> Self {
        let mut data = [0; DATA_LEN];
        for (octet, value) in data.iter_mut().zip(record) {
            *octet = *value;
        }
        Self {
            method,
            status: Status::SUCCESS,
            transaction,
            attribute,
            modifier: 0,
            component_mask: 0,
            data,
        }
    }

    /// Returns the datagram with a component mask.
    #[must_use]
    pub const fn masked(mut self, component_mask: u64) -> Self {
        self.component_mask = component_mask;
        self
    }

    /// Parses a datagram, without a check of its recipient.
    ///
    /// # Errors
    /// See [`MadError`].
    pub fn parse(octets: &[u8]) -> Result<Self, MadError> {
        let mad = head::<MAD_LEN>(octets)?;
        let (&[base, class, version, method, s0, s1, _, _], rest) = split(mad)?;
        if (base, class, version) != (1, CLASS_SUBNET_ADM, 2) {
            return Err(MadError::Class);
        }
        let (transaction, rest) = split::<8>(rest)?;
        let (&[a0, a1, _, _, m0, m1, m2, m3], rest) = split(rest)?;
        let (_rmpp_and_key, rest) = split::<24>(rest)?;
        let (mask, data) = split::<8>(rest)?;
        Ok(Self {
            method: Method::from_number(method),
            status: Status(u16::from_be_bytes([s0, s1])),
            transaction: u64::from_be_bytes(*transaction),
            attribute: Attribute::from_number(u16::from_be_bytes([a0, a1])),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
            component_mask: u64::from_be_bytes(*mask),
            data: *head(data)?,
        })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let parts: [&[u8]; 9] = [
            &[1, CLASS_SUBNET_ADM, 2, self.method.number()],
            &self.status.0.to_be_bytes(),
            &[0; 2],
            &self.transaction.to_be_bytes(),
            &self.attribute.number().to_be_bytes(),
            &[0; 2],
            &self.modifier.to_be_bytes(),
            &[0; 24],
            &self.component_mask.to_be_bytes(),
        ];
        let mut mad = [0; MAD_LEN];
        let all = parts.into_iter().flatten().chain(&self.data);
        for (octet, value) in mad.iter_mut().zip(all) {
            *octet = *value;
        }
        mad
    }

    /// Returns the acknowledgment of a Report: the same datagram with another method.
    #[must_use]
    pub fn report_taken(&self) -> Self {
        Self { method: Method::ReportResp, ..self.clone() }
    }
}

fn split<const N: usize>(octets: &[u8]) -> Result<(&[u8; N], &[u8]), TooShort> {
    octets.split_first_chunk().ok_or(TooShort { need: N, have: octets.len() })
}

#[cfg(test)]
mod tests;
