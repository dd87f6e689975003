//! Terminate messages of a peer, in words.

use urnic::Terminate;

pub(crate) fn words(terminate: &Terminate) -> String {
    format!("{} (Terminate {})", terminate.code.text(), terminate.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urnic_engine::wire::terminate::TerminateCode;

    #[test]
    fn terminate_is_described_in_words_without_fields() {
        let terminate = Terminate::about_segment(TerminateCode::RDMAP_BASE_BOUNDS, &[0x41; 18], 99);
        let said = words(&terminate);
        assert!(said.ends_with("(Terminate 0/1/01)") && said.len() > 25, "{said}");
        assert!(!said.contains(['{', '[']), "{said}");
    }
}
