//! For tests: scripted pages, stand-in servers, seeded failures.
