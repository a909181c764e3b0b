// The C++ baseline: seven nested loops, one thread, as article 001 has it (section 3.1: "a C++
// implementation with nested loops compiled with g++"). Padding, stride and dilation are convlab's
// addition. Tensors as PyTorch lays them out: input [C_i, H_i, W_i], weight [C_o, C_i, H_f, W_f],
// output [C_o, H_o, W_o]. One image a call, so that Python can stop between images; the loop over
// images, the seventh, is in compiled.py.

struct Sizes {  // the order that compiled.py gives them in
  int C_i, H_i, W_i, C_o, H_f, W_f, H_o, W_o, p_h, p_w, s_h, s_w, d_h, d_w;
};

extern "C" void convlab_seven_loops(Sizes const* sizes, float const* input, float const* weight,
                                    float* output) {
  Sizes const& s = *sizes;
  for (int j = 0; j < s.C_o; ++j) {
    for (int m = 0; m < s.H_o; ++m) {
      for (int n = 0; n < s.W_o; ++n) {
        float sum = 0;
        for (int r = 0; r < s.C_i; ++r) {
          for (int u = 0; u < s.H_f; ++u) {
            long long y = (long long)m * s.s_h + (long long)u * s.d_h - s.p_h;
            if (y < 0 || y >= s.H_i) continue;
            for (int v = 0; v < s.W_f; ++v) {
              long long x = (long long)n * s.s_w + (long long)v * s.d_w - s.p_w;
              if (x < 0 || x >= s.W_i) continue;
              sum += input[((long long)r * s.H_i + y) * s.W_i + x] *
                     weight[(((long long)j * s.C_i + r) * s.H_f + u) * s.W_f + v];
            }
          }
        }
        output[((long long)j * s.H_o + m) * s.W_o + n] = sum;
      }
    }
  }
}
