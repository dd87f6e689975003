//! Steps and numbers from bytes.

/// The rest of a script.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    /// Returns the next step, or `None` at the end.
    pub fn step(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a byte; zero behind the end.
    pub fn octet(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.octet(), self.octet()])
    }

    /// Returns `len` bytes, or fewer at the end.
    pub fn octets(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns a number near some limit, or any 16-bit number.
    pub fn number(&mut self) -> u64 {
        let choice = self.octet();
        match NUMBERS.get(usize::from(choice)) {
            Some(number) => *number,
            None if choice < 0x80 => MEMORY_BASE + u64::from(choice) * 1024,
            None => u64::from(self.word()),
        }
    }

    /// Returns the low half of a number.
    pub fn half(&mut self) -> u32 {
        u32::try_from(self.number() & 0xffff_ffff).unwrap_or(0)
    }
}

/// User address of the first byte of a frontend's memory.
pub const MEMORY_BASE: u64 = 1 << 20;
/// Length of that memory, in bytes.
pub const MEMORY_LEN: u64 = 1 << 19;

const NUMBERS: [u64; 25] = [
    0,
    1,
    2,
    3,
    4,
    8,
    12,
    64,
    255,
    256,
    1024,
    1526,
    4096,
    32_768,
    65_535,
    1 << 32,
    (1 << 32) + 0x1_4000_8003,
    MEMORY_BASE,
    MEMORY_BASE + MEMORY_LEN,
    MEMORY_BASE + MEMORY_LEN - 1,
    u64::MAX - 4095,
    u64::MAX,
    1 << 63,
    1 << 30,
    1 << 40,
];
