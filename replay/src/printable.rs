//! Replaces characters of foreign text that a terminal would act on.

/// `text` with every character replaced that does not show as itself: those that move the cursor or
/// change colours, titles or the clipboard (controls), those that reorder or hide what stands beside
/// them (format characters, line and paragraph separators), and those of no known meaning.
///
/// Whatever a peer sent goes through here before it is printed, in every command.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // What the standard library would escape in a debug string, which holds the tables of Unicode.
    // Behind a letter, so that combining characters are taken for what they are.
    let mut buffer = ['a'; 2];
    buffer[1] = c;
    let shown = buffer.iter().collect::<String>();
    shown.escape_debug().eq(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_as_itself_stays() {
        for text in
            ["", "plain: \"text\" 'and' \\ signs~", "größer, 日本, e\u{301}, ✓, 🦀, \u{fffd}"]
        {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn what_changes_the_terminal_or_its_surroundings_is_replaced() {
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
            // Format characters, of which some turn text round.
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
            // Separators, and what has no meaning.
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
