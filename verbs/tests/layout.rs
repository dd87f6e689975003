//! Compares `abi` with the installed headers of rdma-core: a C program made from the crate's own
//! lists prints the size of every structure, the offset and size of every field and the value of
//! every constant, as the C compiler computes them.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use urnic_rdma::abi::{self, Type};
use urnic_testkit::programs;

const HEADERS: [&str; 4] =
    ["infiniband/verbs.h", "rdma/rdma_cma.h", "rdma/rsocket.h", "rdma/ib_user_sa.h"];

/// An expression of C and its expected value.
struct Question {
    expression: String,
    answer: u64,
}

#[test]
fn structures_and_constants_are_those_of_the_headers() {
    if let Some(reason) = missing() {
        urnic_testkit::skip("layout of C's structures", &reason);
        return;
    }
    let questions = questions();
    let answers = ask(&questions);
    assert_eq!(answers.len(), questions.len(), "the program answers every question");
    let wrong: Vec<String> = questions
        .iter()
        .zip(answers)
        .filter(|(question, answer)| question.answer != *answer)
        .map(|(question, answer)| {
            format!("{} is {answer:#x} in C, {:#x} here", question.expression, question.answer)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn missing() -> Option<String> {
    let header = HEADERS.iter().find(|name| !Path::new("/usr/include").join(name).exists());
    match header {
        Some(header) => Some(format!("the header {header} is missing")),
        None => programs::missing(["cc"]),
    }
}

fn questions() -> Vec<Question> {
    let types = abi::TYPES.iter().copied().flatten().flat_map(of_type);
    let constants = abi::CONSTANTS.iter().copied().flatten().map(|&(name, value)| Question {
        expression: name.to_owned(),
        // Negative values as C converts them.
        answer: u64::try_from(value & i128::from(u64::MAX)).unwrap(),
    });
    types.chain(constants).collect()
}

fn of_type(known: &Type) -> Vec<Question> {
    let c_type = match known.c_name {
        [] => format!("{} {}", known.kind, known.name),
        // A union without a name: its offset is checked as that of the enclosing field.
        [""] => return Vec::new(),
        [name, ..] => (*name).to_owned(),
    };
    let mut questions = vec![question(format!("sizeof({c_type})"), known.size)];
    for field in known.fields {
        let name = field.c_name.first().unwrap_or(&field.name);
        questions.push(question(format!("offsetof({c_type}, {name})"), field.offset));
        questions.push(question(format!("sizeof((({c_type} *)0)->{name})"), field.size));
    }
    questions
}

fn question(expression: String, answer: usize) -> Question {
    Question { expression, answer: u64::try_from(answer).unwrap() }
}

/// Compiles and runs the program.
fn ask(questions: &[Question]) -> Vec<u64> {
    let mut source = String::from("#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n");
    for header in HEADERS {
        writeln!(source, "#include <{header}>").unwrap();
    }
    source.push_str("int main(void) {\n");
    for Question { expression, .. } in questions {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)(uintptr_t)({expression}));")
            .unwrap();
    }
    source.push_str("return 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    fs::write(&file, source).unwrap();
    let compiled = programs::program("cc").arg("-o").arg(&program).arg(&file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&program).output().unwrap();
    assert!(said.status.success(), "{}", said.status);
    String::from_utf8(said.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}
