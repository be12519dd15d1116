//! The kernel sources that the binary embeds.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSource<'a> {
    /// File name in `kernels/`.
    pub name: &'a str,
    /// CUDA C++ that includes only `HEADERS`.
    pub text: &'a str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(KernelSource { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }),*]
    };
}

pub const KERNELS: &[KernelSource<'static>] = sources![
    "attention.cu",
    "attention_decode.cu",
    "attention_image.cu",
    "attention_prefill.cu",
    "bias_gelu.cu",
    "causal_conv.cu",
    "convert.cu",
    "copy.cu",
    "embed.cu",
    "gated_norm.cu",
    "moe_experts.cu",
    "moe_route.cu",
    "patches.cu",
    "pixel_shuffle.cu",
    "residual_layer_norm.cu",
    "residual_rms_norm.cu",
    "sample.cu",
    "squared_relu.cu",
    "ssm.cu",
    "ssm_chunked.cu",
];

/// Headers of the kernels, by names without a folder.
pub const HEADERS: &[KernelSource<'static>] = &[
    KernelSource { name: "attending.cuh", text: include_str!("../../../kernels/include/attending.cuh") },
    KernelSource {
        name: "attending_plainly.cuh",
        text: include_str!("../../../kernels/include/attending_plainly.cuh"),
    },
    KernelSource { name: "device.cuh", text: include_str!("../../../kernels/include/device.cuh") },
    KernelSource { name: "pages.cuh", text: include_str!("../../../kernels/include/pages.cuh") },
    KernelSource { name: "ptx.cuh", text: include_str!("../../../kernels/include/ptx.cuh") },
    KernelSource { name: "ssm.cuh", text: include_str!("../../../kernels/include/ssm.cuh") },
];
