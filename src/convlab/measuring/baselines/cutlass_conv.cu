// CUTLASS's implicit GEMM convolution behind a C interface, for compiled.py to build and load.
//
// One library a baseline: nvcc's -D options say which.
//   CONVLAB_ITERATOR  kAnalytic or kOptimized: how a thread finds the pixels that it loads
//   CONVLAB_TF32      1: TF32 on tensor cores; 0: fp32 on the ordinary cores
//
// Tensors are channels-last: input [N, H, W, C], filters [K, R, S, C], output [N, P, Q, K]. The tiles
// are among those that CUTLASS's own generator lists for these instructions; M counts output pixels,
// N output channels. Functions return null or what is wrong, in CUTLASS's words.

#include "cutlass/conv/kernel/default_conv2d_fprop.h"
// After the one above, on which it leans without saying so.
#include "cutlass/conv/device/implicit_gemm_convolution.h"
#include "cutlass/epilogue/thread/linear_combination.h"

namespace {

using Nhwc = cutlass::layout::TensorNHWC;
using Tensor = cutlass::TensorRef<float, Nhwc>;

template <typename Class, typename Tile, typename Warp, typename Instruction, int Stages, int Aligned>
using Convolution = cutlass::conv::device::ImplicitGemmConvolution<
    typename cutlass::conv::kernel::DefaultConv2dFprop<
        float, Nhwc, float, Nhwc, float, Nhwc, float, Class, cutlass::arch::Sm80, Tile, Warp,
        Instruction, cutlass::epilogue::thread::LinearCombination<float, Aligned, float, float>,
        cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<4>, Stages,
        cutlass::arch::OpMultiplyAdd, cutlass::conv::IteratorAlgorithm::CONVLAB_ITERATOR,
        cutlass::conv::StrideSupport::kUnity, Aligned, Aligned>::Kernel>;

template <int M, int N, int K>
using Shape = cutlass::gemm::GemmShape<M, N, K>;

// The order that compiled.py gives them in.
struct Sizes {
  int N, H, W, C, K, R, S, P, Q, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
};

template <typename Kernel>
typename Kernel::Arguments arguments(Sizes const& s, float* input, float* filters, float* output) {
  cutlass::conv::Conv2dProblemSize problem(
      s.N, s.H, s.W, s.C, s.K, s.R, s.S, s.P, s.Q, s.pad_h, s.pad_w, s.stride_h, s.stride_w,
      s.dilation_h, s.dilation_w, cutlass::conv::Mode::kCrossCorrelation);
  Tensor out(output, Nhwc::packed({s.N, s.P, s.Q, s.K}));
  return {problem, {input, Nhwc::packed({s.N, s.H, s.W, s.C})},
          {filters, Nhwc::packed({s.K, s.R, s.S, s.C})}, out, out, {1.0f, 0.0f}};
}

char const* in_words(cutlass::Status status) {
  return status == cutlass::Status::kSuccess ? nullptr : cutlassGetStatusString(status);
}

template <typename Kernel>
char const* can_run(Sizes const& sizes) {
  return in_words(Kernel::can_implement(arguments<Kernel>(sizes, nullptr, nullptr, nullptr)));
}

template <typename Kernel>
char const* run(Sizes const& sizes, float* input, float* filters, float* output, cudaStream_t stream) {
  return in_words(Kernel()(arguments<Kernel>(sizes, input, filters, output), nullptr, stream));
}

struct Choice {
  char const* name;
  char const* (*can_run)(Sizes const&);
  char const* (*run)(Sizes const&, float*, float*, float*, cudaStream_t);
};

template <typename Kernel>
Choice choice(char const* name) {
  return {name, can_run<Kernel>, run<Kernel>};
}

#if CONVLAB_TF32
template <typename Tile, typename Warp, int Stages, int Aligned>
using Tf32 = Convolution<cutlass::arch::OpClassTensorOp, Tile, Warp, Shape<16, 8, 8>, Stages, Aligned>;

Choice const choices[] = {
    choice<Tf32<Shape<128, 128, 16>, Shape<64, 64, 16>, 4, 4>>("128x128x16, 4 stages"),
    choice<Tf32<Shape<256, 64, 16>, Shape<64, 64, 16>, 4, 4>>("256x64x16, 4 stages"),
    choice<Tf32<Shape<128, 64, 32>, Shape<64, 32, 32>, 3, 4>>("128x64x32, 3 stages"),
    choice<Tf32<Shape<64, 64, 32>, Shape<32, 32, 32>, 5, 4>>("64x64x32, 5 stages"),
    choice<Tf32<Shape<128, 128, 16>, Shape<64, 64, 16>, 4, 1>>("128x128x16, 4 stages, unaligned"),
    choice<Tf32<Shape<128, 64, 16>, Shape<64, 32, 16>, 6, 1>>("128x64x16, 6 stages, unaligned"),
};
#else
template <typename Tile, typename Warp, int Stages = 5>
using Fp32 = Convolution<cutlass::arch::OpClassSimt, Tile, Warp, Shape<1, 1, 1>, Stages, 1>;

Choice const choices[] = {
    choice<Fp32<Shape<256, 128, 8>, Shape<64, 64, 8>>>("256x128x8, 5 stages"),
    choice<Fp32<Shape<128, 128, 8>, Shape<32, 64, 8>>>("128x128x8, 5 stages"),
    choice<Fp32<Shape<128, 64, 8>, Shape<64, 32, 8>>>("128x64x8, 5 stages"),
    choice<Fp32<Shape<64, 64, 8>, Shape<32, 64, 8>>>("64x64x8, 5 stages"),
    choice<Fp32<Shape<128, 128, 8>, Shape<32, 64, 8>, 2>>("128x128x8, 2 stages"),
    choice<Fp32<Shape<128, 64, 8>, Shape<64, 32, 8>, 2>>("128x64x8, 2 stages"),
};
#endif

}  // namespace

extern "C" {

int convlab_choices() { return sizeof(choices) / sizeof(choices[0]); }

char const* convlab_name(int which) { return choices[which].name; }

char const* convlab_can_run(int which, int const* sizes) {
  return choices[which].can_run(*reinterpret_cast<Sizes const*>(sizes));
}

char const* convlab_run(int which, int const* sizes, float* input, float* filters, float* output,
                        void* stream) {
  return choices[which].run(*reinterpret_cast<Sizes const*>(sizes), input, filters, output,
                            static_cast<cudaStream_t>(stream));
}

}  // extern "C"
