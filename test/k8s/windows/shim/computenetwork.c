/* computenetwork.dll: the HCN V2 API, as far as Service proxies use it. */
#include "wire.h"

static void print_guid(char *s, const GUID *g) {
    sprintf(s, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", (unsigned long)g->Data1, g->Data2, g->Data3, g->Data4[0], g->Data4[1],
            g->Data4[2], g->Data4[3], g->Data4[4], g->Data4[5], g->Data4[6], g->Data4[7]);
}

static void parse_guid(GUID *g, const char *s) {
    unsigned long a;
    unsigned int b, c, d[8];
    int i;
    if (sscanf(s, "%8lx-%4x-%4x-%2x%2x-%2x%2x%2x%2x%2x%2x", &a, &b, &c, &d[0], &d[1], &d[2], &d[3], &d[4], &d[5], &d[6], &d[7]) != 11)
        return;
    g->Data1 = a;
    g->Data2 = (unsigned short)b;
    g->Data3 = (unsigned short)c;
    for (i = 0; i < 8; i++)
        g->Data4[i] = (unsigned char)d[i];
}

/* forward makes a call with up to two arguments; every result is optional. */
static HRESULT forward(const char *fn, const char *a, const char *b, GUID *id, void **handle, WCHAR **out, WCHAR **record) {
    const char *words[3] = {fn, a, b};
    struct reply r = call(words, b ? 3 : a ? 2 : 1);
    HRESULT hr = r.hr;
    if (id && r.id && *r.id)
        parse_guid(id, r.id);
    if (handle)
        *handle = (void *)(uintptr_t)r.handle;
    give(out, r.out);
    give(record, r.record);
    drop(&r);
    return hr;
}

static void print_handle(char *s, void *h) { sprintf(s, "%llu", (unsigned long long)(uintptr_t)h); }

#define EXPORT __declspec(dllexport) HRESULT WINAPI

#define OBJECT(Kind, Kinds)                                                                                   \
    EXPORT HcnEnumerate##Kinds(const WCHAR *query, WCHAR **out, WCHAR **record) {                             \
        char *q = utf8(query);                                                                                \
        HRESULT hr = forward("HcnEnumerate" #Kinds, q, NULL, NULL, NULL, out, record);                        \
        free(q);                                                                                              \
        return hr;                                                                                            \
    }                                                                                                         \
    EXPORT HcnOpen##Kind(const GUID *id, void **handle, WCHAR **record) {                                     \
        char g[40];                                                                                           \
        print_guid(g, id);                                                                                    \
        return forward("HcnOpen" #Kind, g, NULL, NULL, handle, NULL, record);                                 \
    }                                                                                                         \
    EXPORT HcnQuery##Kind##Properties(void *handle, const WCHAR *query, WCHAR **out, WCHAR **record) {        \
        char h[24], *q = utf8(query);                                                                         \
        HRESULT hr;                                                                                           \
        print_handle(h, handle);                                                                              \
        hr = forward("HcnQuery" #Kind "Properties", h, q, NULL, NULL, out, record);                           \
        free(q);                                                                                              \
        return hr;                                                                                            \
    }                                                                                                         \
    EXPORT HcnModify##Kind(void *handle, const WCHAR *settings, WCHAR **record) {                             \
        char h[24], *s = utf8(settings);                                                                      \
        HRESULT hr;                                                                                           \
        print_handle(h, handle);                                                                              \
        hr = forward("HcnModify" #Kind, h, s, NULL, NULL, NULL, record);                                      \
        free(s);                                                                                              \
        return hr;                                                                                            \
    }                                                                                                         \
    EXPORT HcnDelete##Kind(const GUID *id, WCHAR **record) {                                                  \
        char g[40];                                                                                           \
        print_guid(g, id);                                                                                    \
        return forward("HcnDelete" #Kind, g, NULL, NULL, NULL, NULL, record);                                 \
    }                                                                                                         \
    EXPORT HcnClose##Kind(void *handle) {                                                                     \
        char h[24];                                                                                           \
        print_handle(h, handle);                                                                              \
        return forward("HcnClose" #Kind, h, NULL, NULL, NULL, NULL, NULL);                                    \
    }

#define CREATE(Kind)                                                                                          \
    EXPORT HcnCreate##Kind(GUID *id, const WCHAR *settings, void **handle, WCHAR **record) {                  \
        char *s = utf8(settings);                                                                             \
        HRESULT hr = forward("HcnCreate" #Kind, s, NULL, id, handle, NULL, record);                           \
        free(s);                                                                                              \
        return hr;                                                                                            \
    }

OBJECT(Network, Networks)
OBJECT(Endpoint, Endpoints)
OBJECT(LoadBalancer, LoadBalancers)
OBJECT(Namespace, Namespaces)
OBJECT(SdnRoute, SdnRoutes)

CREATE(Network)
CREATE(LoadBalancer)
CREATE(Namespace)
CREATE(SdnRoute)

EXPORT HcnCreateEndpoint(void *network, GUID *id, const WCHAR *settings, void **handle, WCHAR **record) {
    char h[24], *s = utf8(settings);
    HRESULT hr;
    print_handle(h, network);
    hr = forward("HcnCreateEndpoint", h, s, id, handle, NULL, record);
    free(s);
    return hr;
}

/* A registration has a connection of its own: the reply to the call, then a reply for each notification, whose HRESULT is the type. */
struct watch {
    SOCKET s;
    void(CALLBACK *notify)(DWORD, void *, HRESULT, const WCHAR *);
    void *context;
    volatile LONG ended;
};

#define SERVICE_DISCONNECT 0x01000000

static DWORD WINAPI follow(void *arg) {
    struct watch *w = arg;
    struct reply r = {0};

    while (take_reply(w->s, &r) == 0) {
        w->notify((DWORD)r.hr, w->context, S_OK, NULL);
        drop(&r);
    }
    if (!w->ended)
        w->notify(SERVICE_DISCONNECT, w->context, S_OK, NULL);
    return 0;
}

EXPORT HcnRegisterServiceCallback(void(CALLBACK *notify)(DWORD, void *, HRESULT, const WCHAR *), void *context, void **handle) {
    const char *words[1] = {"HcnRegisterServiceCallback"};
    struct reply r = {RPC_FAILED, 0, NULL, NULL, NULL};
    struct watch *w = calloc(1, sizeof *w);
    HRESULT hr;

    w->s = connect_fake();
    w->notify = notify;
    w->context = context;
    if (w->s == INVALID_SOCKET || put_call(w->s, words, 1) || take_reply(w->s, &r))
        r.hr = RPC_FAILED;
    hr = r.hr;
    drop(&r);
    if (hr != S_OK) {
        closesocket(w->s);
        free(w);
        return hr;
    }
    *handle = w;
    CloseHandle(CreateThread(NULL, 0, follow, w, 0, NULL));
    return S_OK;
}

/* The registration is not freed: its thread may be in a callback. */
EXPORT HcnUnregisterServiceCallback(void *handle) {
    struct watch *w = handle;
    InterlockedExchange(&w->ended, 1);
    closesocket(w->s);
    return S_OK;
}
