// Softmax and cross-entropy of logits(K,N): a sample is a column, so that the layer before needs no transpose.
// One block works on one sample whatever K is. Outputs may be the logits themselves (in place).

#define FLOAT_MAX 3.402823466e38f
// Classes that are summed by themselves, before their sum is added to the others': each addition to a sum rounds as the sum
// is large, so that one sum of 10^6 classes on the host would be off by 0.5%.
#define PART 1024LL

// most[n] = the largest logit of the run's samples; ends with a barrier.
__device__ inline void column_maxima(Run run, const float* logits, float* most, i64 K, i64 N) {
  EACH(n, run, 0, N) most[n - run.begin] = -INFINITY;
  BLOCK_STRIDE(k, K) EACH(n, run, 0, N) most[n - run.begin] = max_nan(logits[k * N + n], most[n - run.begin]);
  EACH(n, run, 0, N) most[n - run.begin] = block_max(most[n - run.begin]);
}

// p[k] = exp(z[k] - most); sum[n] is their sum, at least 1 unless a logit is NaN or all are infinite.
__device__ inline void exponentials(Run run, const float* logits, float* p, const float* most, float* sum, i64 K, i64 N) {
  EACH(n, run, 0, N) sum[n - run.begin] = 0.f;
  for (i64 first = 0; first < K; first += PART) {
    float part[COLUMNS];
    EACH(n, run, 0, N) part[n - run.begin] = 0.f;
    BLOCK_STRIDE(k, min(PART, K - first)) EACH(n, run, 0, N) {
      const float e = expf(logits[(first + k) * N + n] - most[n - run.begin]);
      p[(first + k) * N + n] = e;
      part[n - run.begin] += e;
    }
    EACH(n, run, 0, N) sum[n - run.begin] += part[n - run.begin];
  }
  EACH(n, run, 0, N) sum[n - run.begin] = block_sum(sum[n - run.begin]);
}

extern "C" __global__ void softmax(const float* logits, float* p, i64 K, i64 N) {
  BLOCK_COLUMNS(run, N) {
    float most[COLUMNS], sum[COLUMNS];
    column_maxima(run, logits, most, K, N);
    exponentials(run, logits, p, most, sum, K, N);
    BLOCK_STRIDE(k, K) EACH(n, run, 0, N) p[k * N + n] /= sum[n - run.begin];
  }
}

// A label outside 0..K-1 reads nothing and gives NaN.
__device__ inline float label_logit(const float* logits, i64 n, int label, i64 K, i64 N) {
  return label >= 0 && label < K ? logits[label * N + n] : NAN;
}

// log-sum-exp minus the label's logit; the largest float stands for what float32 cannot hold.
__device__ inline float cross_entropy(float most, float sum, float logit) {
  const float loss = logf(sum) + (most - logit);
  return loss > FLOAT_MAX ? FLOAT_MAX : loss;
}

extern "C" __global__ void cross_entropy_loss(const float* __restrict__ logits, const int* __restrict__ labels,
                                              float* __restrict__ loss, i64 K, i64 N) {
  BLOCK_COLUMNS(run, N) {
    float most[COLUMNS], sum[COLUMNS];
    column_maxima(run, logits, most, K, N);
    EACH(n, run, 0, N) sum[n - run.begin] = 0.f;
    for (i64 first = 0; first < K; first += PART) {
      float part[COLUMNS];
      EACH(n, run, 0, N) part[n - run.begin] = 0.f;
      BLOCK_STRIDE(k, min(PART, K - first)) EACH(n, run, 0, N)
        part[n - run.begin] += expf(logits[(first + k) * N + n] - most[n - run.begin]);
      EACH(n, run, 0, N) sum[n - run.begin] += part[n - run.begin];
    }
    EACH(n, run, 0, N) {
      const float total = block_sum(sum[n - run.begin]);
      if (threadIdx.x == 0)
        loss[n] = cross_entropy(most[n - run.begin], total, label_logit(logits, n, labels[n], K, N));
    }
  }
}

// dlogits = scale * (p - [k == label]), in the same pass over the classes. The labels' logits are read before the barrier
// of column_maxima, so before anything is written.
extern "C" __global__ void softmax_cross_entropy(const float* logits, const int* __restrict__ labels,
                                                 float* __restrict__ loss, float* dlogits, float scale, i64 K, i64 N) {
  BLOCK_COLUMNS(run, N) {
    float most[COLUMNS], sum[COLUMNS], logit[COLUMNS];
    EACH(n, run, 0, N) logit[n - run.begin] = label_logit(logits, n, labels[n], K, N);
    column_maxima(run, logits, most, K, N);
    exponentials(run, logits, dlogits, most, sum, K, N);
    BLOCK_STRIDE(k, K) EACH(n, run, 0, N) {
      const float p = dlogits[k * N + n] / sum[n - run.begin];
      dlogits[k * N + n] = scale * (k == labels[n] ? p - 1.f : p);
    }
    EACH(n, run, 0, N) {
      if (threadIdx.x == 0) loss[n] = cross_entropy(most[n - run.begin], sum[n - run.begin], logit[n - run.begin]);
    }
  }
}

// How many classes come before the label's: greater logits, and equal ones of a smaller class, so that a net that says
// the same of all classes is right once in K. NaN comes before everything: a net that has diverged is never right.
extern "C" __global__ void label_rank(const float* __restrict__ logits, const int* __restrict__ labels,
                                      int* __restrict__ rank, i64 K, i64 N) {
  BLOCK_COLUMNS(run, N) {
    float own[COLUMNS], before[COLUMNS];
    EACH(n, run, 0, N) own[n - run.begin] = label_logit(logits, n, labels[n], K, N);
    EACH(n, run, 0, N) before[n - run.begin] = 0.f;
    BLOCK_STRIDE(k, K) EACH(n, run, 0, N) {
      const float z = logits[k * N + n];
      const bool after = z < own[n - run.begin] || (z == own[n - run.begin] && k >= labels[n]);
      before[n - run.begin] += after ? 0.f : 1.f;
    }
    EACH(n, run, 0, N) {
      const float total = block_sum(before[n - run.begin]);
      if (threadIdx.x == 0) rank[n] = (int)total;
    }
  }
}
