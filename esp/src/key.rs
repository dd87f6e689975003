//! Key material: erased from memory when it is dropped, never printed.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes of a key. `Debug` prints their number only; dropping overwrites them.
#[derive(Clone)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Takes over the bytes of a key. The vector must not have been reallocated with a part of the
    /// key in it: the old allocation would keep that part.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the key has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes.to_vec())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_key_shows_only_its_length() {
        let key = Key::from(&[0xab; 20][..]);
        assert_eq!(format!("{key:?} {key:#?}"), "Key(20 bytes) Key(20 bytes)");
        assert_eq!((key.len(), key.is_empty()), (20, false));
    }
}
