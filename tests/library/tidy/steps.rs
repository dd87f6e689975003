//! The steps of `.ci/run` and the workflows of a forge: each step is run there, and no other is named.

use std::collections::BTreeSet;

use super::packages::read;

/// Returns the words of a list of bash, `NAME=(…)`.
fn list(script: &str, name: &str) -> Vec<String> {
    let start = format!("\n{name}=(");
    let (_, rest) = script.split_once(&*start).unwrap_or_else(|| panic!("no list {name}"));
    rest.split(')').next().unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn workflows_run_the_steps_of_the_gate() {
    let script = read(".ci/run");
    let gate = list(&script, "all");
    let others = list(&script, "others");
    assert!(gate.len() > 10, "{gate:?}");
    for (kind, steps) in [("gate", &gate), ("forge", &others)] {
        for step in steps {
            assert!(script.contains(&format!("\n{kind}_{step}() {{\n")), "no function of {step}");
        }
    }
    let known: BTreeSet<&str> = gate.iter().chain(&others).map(String::as_str).collect();
    let workflow = read(".github/workflows/ci.yml");
    let mut run = BTreeSet::new();
    for line in workflow.lines() {
        // In a command each word is a step; items of a matrix are lists of steps.
        if let Some((_, steps)) = line.split_once("run: .ci/run ") {
            let steps = steps.split(" ${{").next().unwrap();
            for step in steps.split_whitespace() {
                assert!(known.contains(step), "ci.yml: no step {step}");
                run.insert(step);
            }
        } else if let Some(item) = line.trim_start().strip_prefix("- ") {
            let steps: Vec<&str> = item.split_whitespace().collect();
            if steps.iter().all(|step| known.contains(step)) {
                run.extend(steps);
            }
        }
    }
    let missing: Vec<_> = known.difference(&run).collect();
    assert!(missing.is_empty(), "ci.yml does not run {missing:?}");
}
