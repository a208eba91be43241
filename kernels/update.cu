// Updates of the flat parameters w(n) from the gradient g(n); weight decay adds weight_decay * w to the gradient.

extern "C" __global__ void scale(float* __restrict__ x, float alpha, i64 n) {
  GRID_STRIDE_LOOP(i, n) x[i] *= alpha;
}

extern "C" __global__ void axpy(float alpha, const float* __restrict__ x, float* __restrict__ y, i64 n) {
  GRID_STRIDE_LOOP(i, n) y[i] += alpha * x[i];
}

extern "C" __global__ void sgd(float* __restrict__ w, const float* __restrict__ g, float lr, float weight_decay, i64 n) {
  GRID_STRIDE_LOOP(i, n) w[i] -= lr * (g[i] + weight_decay * w[i]);
}

extern "C" __global__ void momentum(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ v, float lr,
                                    float mu, float weight_decay, i64 n) {
  GRID_STRIDE_LOOP(i, n) {
    v[i] = mu * v[i] - lr * (g[i] + weight_decay * w[i]);
    w[i] += v[i];
  }
}

// h collects squares and never shrinks. eps > 0 keeps a weight that has never had a gradient where it is.
extern "C" __global__ void adagrad(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ h, float lr,
                                   float eps, float weight_decay, i64 n) {
  GRID_STRIDE_LOOP(i, n) {
    const float gradient = g[i] + weight_decay * w[i];
    h[i] += gradient * gradient;
    w[i] -= lr * gradient / (sqrtf(h[i]) + eps);
  }
}
