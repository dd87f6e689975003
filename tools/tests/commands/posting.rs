//! `bw --post-list` and `--signal-every`: the number of calls that post, and of completions.

use crate::commands::scene::{Server, json};

/// The FPDUs that both ends count are the independent check: one for each message, and some for
/// control messages.
#[test]
fn bw_posts_lists_and_signals_some_messages() {
    let server = Server::start("");
    let of = |options: &str| {
        let result = json(&server.client(&format!("bw ADDRESS -s 8 {options} --json")));
        let figure = |name: &str| result[name].as_u64().unwrap();
        let counted = |end: &str, name: &str| result[end][name].as_u64().unwrap();
        let messages = figure("messages");
        assert!(counted("local", "fpdus_sent") >= messages, "{options}: {result}");
        assert!(counted("peer", "fpdus_received") >= messages, "{options}: {result}");
        (messages, figure("posting_calls"), figure("completions"))
    };
    assert_eq!(of("-n 100"), (100, 100, 100));
    assert_eq!(of("-n 100 --post-list 8"), (100, 13, 100));
    // One of 16, and the last.
    assert_eq!(of("-n 100 --post-list 8 --signal-every 16"), (100, 13, 7));
    let all = of("--depth 4096 -n 8192 --post-list 4096 --signal-every 4096");
    assert_eq!(all, (8192, 2, 2));
    for op in ["send", "read", "immediate", "fetch-add"] {
        let options = "-n 1000 --post-list 16 --signal-every 16 --json";
        let line = format!("bw ADDRESS --op {op} {options}");
        let result = json(&server.client(&line));
        let figure = |name: &str| result[name].as_u64().unwrap();
        let figures = ["messages", "posting_calls", "completions"].map(figure);
        assert_eq!(figures, [1000, 63, 63], "{op}");
    }
    server.stop();
}
