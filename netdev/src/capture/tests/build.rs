//! Capture files built byte by byte, independently of the reader.

/// Byte order of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Big,
    Little,
}

impl Order {
    fn u16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        }
    }

    fn u32(self, value: usize) -> [u8; 4] {
        let value = u32::try_from(value).unwrap();
        match self {
            Self::Big => value.to_be_bytes(),
            Self::Little => value.to_le_bytes(),
        }
    }
}

/// Builds a pcap file of frames with seconds and fractions.
pub(super) fn classic(
    order: Order,
    magic: u32,
    link: usize,
    frames: &[(usize, usize, &[u8])],
) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(order.u32(magic as usize));
    file.extend(order.u16(2));
    file.extend(order.u16(4));
    for field in [0, 0, 262_144, link] {
        file.extend(order.u32(field));
    }
    for (seconds, fraction, bytes) in frames {
        for field in [*seconds, *fraction, bytes.len(), bytes.len()] {
            file.extend(order.u32(field));
        }
        file.extend(*bytes);
    }
    file
}

/// A pcapng file.
#[derive(Debug)]
pub(super) struct Ng {
    pub(super) octets: Vec<u8>,
    order: Order,
}

impl Ng {
    /// Begins a file with a section header.
    pub(super) fn new(order: Order) -> Self {
        let mut file = Self { octets: Vec::new(), order };
        let mut body = order.u32(0x1a2b_3c4d).to_vec();
        body.extend(order.u16(1));
        body.extend(order.u16(0));
        body.extend([0xff; 8]);
        file.block(0x0a0d_0d0a, &body);
        file
    }

    pub(super) fn block(&mut self, block_type: usize, body: &[u8]) {
        let len = body.len().next_multiple_of(4) + 12;
        self.octets.extend(self.order.u32(block_type));
        self.octets.extend(self.order.u32(len));
        self.octets.extend(body);
        self.octets.resize(self.octets.len().next_multiple_of(4), 0xdd);
        self.octets.extend(self.order.u32(len));
    }

    /// Adds an interface, with options that lack an end mark, which the format allows.
    pub(super) fn interface(&mut self, link: u16, snap_len: usize, options: &[(u16, &[u8])]) {
        let mut body = self.order.u16(link).to_vec();
        body.extend([0, 0]);
        body.extend(self.order.u32(snap_len));
        for (code, value) in options {
            body.extend(self.order.u16(*code));
            body.extend(self.order.u16(u16::try_from(value.len()).unwrap()));
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        self.block(1, &body);
    }

    pub(super) fn enhanced(&mut self, id: usize, ticks: u64, bytes: &[u8], original_len: usize) {
        let id = self.order.u32(id);
        self.packet(6, id, ticks, bytes, original_len);
    }

    pub(super) fn old_packet(&mut self, id: u16, ticks: u64, bytes: &[u8]) {
        let [high, low] = self.order.u16(id);
        // Five dropped frames follow the interface.
        let [drops_high, drops_low] = self.order.u16(5);
        self.packet(2, [high, low, drops_high, drops_low], ticks, bytes, bytes.len());
    }

    fn packet(&mut self, kind: usize, id: [u8; 4], ticks: u64, bytes: &[u8], original_len: usize) {
        let mut body = id.to_vec();
        let (high, low) = (ticks >> 32, ticks & 0xffff_ffff);
        let half = |half| usize::try_from(half).unwrap();
        for field in [half(high), half(low), bytes.len(), original_len] {
            body.extend(self.order.u32(field));
        }
        body.extend(bytes);
        self.block(kind, &body);
    }

    pub(super) fn simple(&mut self, bytes: &[u8], original_len: usize) {
        let mut body = self.order.u32(original_len).to_vec();
        body.extend(bytes);
        self.block(3, &body);
    }

    pub(super) fn unknown(&mut self, block_type: usize, len: usize) {
        self.block(block_type, &vec![0xaa; len]);
    }
}
