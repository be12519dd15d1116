//! `furrow bench`: measures parts of the farm on this machine; each figure beside a peer or a floor of the same run.

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
mod records;
mod report;
mod soak;
mod swap;
mod viewer;

use clap::{Args, Subcommand};

use crate::Failure;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The bare browser loop, beside the same loop in Playwright
    Browser(browser::BrowserArgs),
    /// A run's dashboard with its pages open, beside the run itself
    Dashboard(dashboard::DashboardArgs),
    /// The whole farm with the random policy, beside the bare browser loop
    Farm(farm::FarmArgs),
    /// The model on an NVIDIA GPU, each figure beside its floor at the rates of the same run
    Gpu(gpu::GpuArgs),
    /// Policy sessions over loopback gRPC at full speed: rate, and whether memory stays flat
    Grpc(grpc::GrpcArgs),
    /// The model on this machine's processors, beside the same model in llama.cpp
    Llama(llama::LlamaArgs),
    /// The model on this machine's processors, beside the same model in transformers
    Model(model::ModelArgs),
    /// Thousands of trajectories in a row on one worker: whether processes, files or memory grow
    Soak(soak::SoakArgs),
    /// Screenshots into durable shards, beside the disk's own rate; and the time from a trajectory's end to the manifest
    Records(records::RecordsArgs),
    /// New weights under sessions that decode without rest: how long nothing runs
    Swap(swap::SwapArgs),
}

/// How every benchmark is run and told.
#[derive(Debug, Args)]
struct BenchArgs {
    /// Measure although other work loads the machine
    #[arg(long)]
    anyway: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &BenchCommand) -> Result<(), Failure> {
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
    }
}
