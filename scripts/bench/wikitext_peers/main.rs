//! CPU seconds that readers of wikitext in Rust take for the pages of a file: a line for each reader and repetition.
//!
//! The file is pages one after another: the number of bytes (8, little endian), then as much UTF-8.

use std::hint::black_box;
use std::panic::catch_unwind;

type Reader = fn(&str) -> String;

const READERS: [(&str, Reader); 3] = [
    ("wikrs", |text| wikrs::render::plain(&wikrs::parser::parse(text).nodes)),
    ("wikrs_strip", wikrs::extract::strip),
    ("wicket", wicket::clean_wikitext),
];

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn read_pages(path: &str) -> Vec<String> {
    let data = std::fs::read(path).expect("the file of pages");
    let mut pages = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let length = u64::from_le_bytes(data[at..at + 8].try_into().unwrap()) as usize;
        pages.push(String::from_utf8(data[at + 8..at + 8 + length].to_vec()).expect("UTF-8"));
        at += 8 + length;
    }
    pages
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let pages = read_pages(&arguments[1]);
    for _ in 0..arguments[2].parse().expect("repetitions") {
        for (name, read) in READERS {
            let before = cpu_seconds();
            let failed = pages.iter().filter(|page| catch_unwind(|| black_box(read(page))).is_err()).count();
            println!("{name} {} {failed}", cpu_seconds() - before);
        }
    }
}
