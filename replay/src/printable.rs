//! Replaces characters of foreign text that a terminal would interpret.

/// Replaces every character that does not show as itself: characters that move the cursor or change
/// colours, titles or the clipboard (controls), characters that reorder or hide adjacent text
/// (format characters, line and paragraph separators), and unassigned ones. Commands pass a peer's
/// text through this function.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // The standard library, which has the tables of Unicode, would escape these characters in a
    // debug string. A letter in front ensures that combining characters are recognised.
    let mut buffer = ['a'; 2];
    buffer[1] = c;
    let shown = buffer.iter().collect::<String>();
    shown.escape_debug().eq(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_stays_unchanged() {
        for text in
            ["", "plain: \"text\" 'and' \\ signs~", "größer, 日本, e\u{301}, ✓, 🦀, \u{fffd}"]
        {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn control_and_direction_characters_are_replaced() {
        let harmful = [
            '\0',
            '\t',
            '\n',
            '\r',
            '\u{7}',
            '\u{1b}',
            '\u{7f}',
            '\u{80}',
            '\u{9b}',
            '\u{9f}',
            // Format characters; some of them reverse text.
            '\u{ad}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{feff}',
            '\u{fff9}',
            '\u{e0001}',
            '\u{e007f}',
            // Separators, and characters without a meaning.
            '\u{2028}',
            '\u{2029}',
            '\u{e000}',
            '\u{ffff}',
            '\u{10ffff}',
            '\u{378}',
        ];
        for c in harmful {
            let text = format!("a{c}b");
            assert_eq!(printable(&text), "a\u{fffd}b", "U+{:04X}", u32::from(c));
        }
        assert_eq!(
            printable("\u{1b}]0;owned\u{7}\u{1b}[2J"),
            "\u{fffd}]0;owned\u{fffd}\u{fffd}[2J"
        );
    }
}
