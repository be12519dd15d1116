//! The kernels, as the binary carries them.

/// One operation's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source<'a> {
    /// File name in `kernels/`.
    pub name: &'a str,
    /// CUDA C++ that includes nothing but `HEADERS`.
    pub text: &'a str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }),*]
    };
}

/// Every kernel file.
pub const KERNELS: &[Source<'static>] = sources![
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

/// What kernels include. Their names carry no folder.
pub const HEADERS: &[Source<'static>] = &[
    Source { name: "attending.cuh", text: include_str!("../../../kernels/include/attending.cuh") },
    Source {
        name: "attending_plainly.cuh",
        text: include_str!("../../../kernels/include/attending_plainly.cuh"),
    },
    Source { name: "device.cuh", text: include_str!("../../../kernels/include/device.cuh") },
    Source { name: "pages.cuh", text: include_str!("../../../kernels/include/pages.cuh") },
    Source { name: "ptx.cuh", text: include_str!("../../../kernels/include/ptx.cuh") },
    Source { name: "ssm.cuh", text: include_str!("../../../kernels/include/ssm.cuh") },
];
