//! Figures for people, and names of opcodes.

use urnic_engine::wire::rdmap::Opcode;

/// Formats a count with separated thousands: `1 234 567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with a noun: `1 frame`, `2 frames`.
pub fn plural(number: u64, one: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {one}{ending}", count(number))
}

/// Formats `part` of `whole` in percent; a dash if `whole` is zero.
#[expect(clippy::cast_precision_loss, reason = "a share is shown with one decimal")]
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// Returns the key of an opcode in the report.
pub(crate) fn json_name(bits: u8) -> String {
    let name = match Opcode::from_bits(bits) {
        Opcode::RdmaWrite => "rdma_write",
        Opcode::ReadRequest => "read_request",
        Opcode::ReadResponse => "read_response",
        Opcode::Send => "send",
        Opcode::SendInvalidate => "send_invalidate",
        Opcode::SendSolicited => "send_se",
        Opcode::SendSolicitedInvalidate => "send_se_invalidate",
        Opcode::Terminate => "terminate",
        Opcode::Immediate => "immediate",
        Opcode::ImmediateSolicited => "immediate_se",
        Opcode::AtomicRequest => "atomic_request",
        Opcode::AtomicResponse => "atomic_response",
        Opcode::SendImmediate => "send_immediate",
        Opcode::SendImmediateSolicited => "send_immediate_se",
        Opcode::Reserved(_) => return format!("opcode_{bits:#x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        let shown = [0, 12, 999, 1000, 1_234_567].map(count);
        assert_eq!(shown, ["0", "12", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn figure_of_one_is_singular() {
        let shown = [0, 1, 2, 1000].map(|number| plural(number, "frame"));
        assert_eq!(shown, ["0 frames", "1 frame", "2 frames", "1 000 frames"]);
    }

    #[test]
    fn a_share_of_nothing_is_a_dash() {
        assert_eq!(share(0, 0), "–");
        assert_eq!(share(1, 8), "12.5 %");
    }
}
