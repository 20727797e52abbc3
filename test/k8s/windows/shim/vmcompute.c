/* vmcompute.dll: HNSCall, the V1 API. */
#include "wire.h"

__declspec(dllexport) HRESULT WINAPI HNSCall(const WCHAR *method, const WCHAR *path, const WCHAR *object, WCHAR **response) {
    char *m = utf8(method), *p = utf8(path), *o = utf8(object);
    const char *words[4] = {"HNSCall", m, p, o};
    struct reply r = call(words, 4);
    HRESULT hr = r.hr;
    give(response, r.out);
    drop(&r);
    free(m);
    free(p);
    free(o);
    return hr;
}
