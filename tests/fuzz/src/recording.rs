//! Recordings from anywhere: a file that somebody sent in.
//!
//! The first byte says what the rest is: a file as it stands, or frames that are given the lengths
//! and checksums without which nobody looks into them.

use std::io::Write;

use arbitrary::{Arbitrary, Unstructured};
use ballast::decide::eviction::counterfactual;
use ballast::decide::eviction::story::{Step, StoryHeader};
use ballast::model::recording::{Decoder, MAGIC};
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use serde::Deserialize;

/// More would tell nothing new, and a counterfactual looks at each from each.
const MAX_STEPS: usize = 64;

pub fn run(data: &[u8]) {
    match data {
        [form, file @ ..] if form % 2 == 0 => check(file),
        [_, choices @ ..] => {
            // Too few choices for a frame say nothing.
            if let Ok(frames) = Vec::<Frame>::arbitrary(&mut Unstructured::new(choices)) {
                check(&file_of(&frames));
            }
        }
        [] => (),
    }
}

/// Whatever can be read as a story can be decided, and told otherwise.
fn check(file: &[u8]) {
    let Ok(mut decoder) = Decoder::new(file) else {
        return;
    };
    let header = StoryHeader::deserialize(decoder.header()).ok();
    let mut steps = Vec::new();
    while let Ok(Some(step)) = decoder.next_step() {
        if let (Some(header), Some(step)) = (&header, Step::deserialize(step).ok()) {
            let _decision = step.decide_again(&header.policy);
            steps.push(step);
        }
    }
    assert!(decoder.n_lost() <= file.len());
    steps.truncate(MAX_STEPS);
    if let Some(header) = header {
        let recorded = counterfactual::recorded(&header.policy, &steps);
        assert!(recorded.kills.len() <= steps.iter().map(|it| it.done.len()).sum());
        let played = counterfactual::play(&header.policy, &header.policy, &steps);
        assert!(played.shortages.len() >= recorded.shortages.len());
    }
}

#[derive(Debug, Arbitrary)]
struct Frame {
    kind: u8,
    plain: Vec<u8>,
}

fn file_of(frames: &[Frame]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    let mut stream = DeflateEncoder::new(Vec::new(), Compression::fast());
    for frame in frames {
        let kind = frame.kind % 3;
        if kind < 2 {
            stream = DeflateEncoder::new(Vec::new(), Compression::fast());
        }
        let written = stream.write_all(&frame.plain).and_then(|()| stream.flush());
        written.expect("deflate takes any bytes");
        let payload = std::mem::take(stream.get_mut());
        let length = u32::try_from(payload.len()).expect("an input is small");
        let mut crc = Crc::new();
        crc.update(&[kind]);
        crc.update(&length.to_le_bytes());
        crc.update(&payload);
        file.push(kind);
        file.extend(length.to_le_bytes());
        file.extend(crc.sum().to_le_bytes());
        file.extend(payload);
    }
    file
}
