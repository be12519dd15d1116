//! `furrow-bench`: measures parts of the farm on this machine, each beside a peer or a lower bound
//! of the same run.

mod browser;
mod checkpoints;
mod child;
mod dashboard;
mod farm;
mod gpu;
mod grpc;
mod llama;
mod llama_peer;
mod model;
mod model_ours;
mod model_peer;
mod pace;
mod peer;
mod program;
mod records;
mod report;
mod soak;
mod swap;
mod viewer;
mod walls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use furrow::{CommandFailure, output};
use report::BenchArgs;

/// Measure parts of the farm on this machine, and write or print the results.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure the bare browser loop beside the same loop in Playwright
    Browser(browser::BrowserArgs),
    /// Measure what a run's dashboard costs with its pages open
    Dashboard(dashboard::DashboardArgs),
    /// Measure the whole farm with the random policy beside the bare browser loop
    Farm(farm::FarmArgs),
    /// Measure the model on an NVIDIA GPU, each result relative to its lower bound at the rates of
    /// the same run
    Gpu(gpu::GpuArgs),
    /// Measure policy sessions over loopback gRPC at full speed: rate, and whether memory stays
    /// flat
    Grpc(grpc::GrpcArgs),
    /// Measure the model on this machine's CPU beside the same model in llama.cpp
    Llama(llama::LlamaArgs),
    /// Measure the model on this machine's CPU beside the same model in transformers
    Model(model::ModelArgs),
    /// Run thousands of trajectories on one worker and measure whether processes, files or memory
    /// grow
    Soak(soak::SoakArgs),
    /// Measure how fast screenshots become durable shards, beside the disk's own rate, and the time
    /// from a trajectory's end to its manifest commit
    Records(records::RecordsArgs),
    /// Measure how long sessions that decode without pause stop while new weights are loaded
    Swap(swap::SwapArgs),
    /// Measure what walls around browsers cost: the start of one with and without a network of its
    /// own, and a session in a browser of its own beside one that shares it
    Walls(walls::WallsArgs),
}

fn main() -> ExitCode {
    if let Some(status) = furrow_env::become_namespace_helper() {
        return status;
    }
    output::set_program("furrow-bench");
    furrow::exit_code(run(&Cli::parse().command))
}

fn run(command: &BenchCommand) -> Result<(), CommandFailure> {
    match command {
        BenchCommand::Browser(args) => browser::run(args),
        BenchCommand::Dashboard(args) => dashboard::run(args),
        BenchCommand::Farm(args) => farm::run(args),
        BenchCommand::Gpu(args) => gpu::run(args),
        BenchCommand::Grpc(args) => grpc::run(args),
        BenchCommand::Llama(args) => llama::run(args),
        BenchCommand::Model(args) => model::run(args),
        BenchCommand::Soak(args) => soak::run(args),
        BenchCommand::Records(args) => records::run(args),
        BenchCommand::Swap(args) => swap::run(args),
        BenchCommand::Walls(args) => walls::run(args),
    }
}
