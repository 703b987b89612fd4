// Made of src/clew/spec/spec.json by `make viewer`: change that.

export const KIND = {"module":0,"op":1,"note":2,"step":3,"variable":4,"tap":5,"grad":6,"prefix":7,"gathered":8,"composite":9} as const;
export const PHASE = {"forward":0,"backward":1,"recompute":2,"optimizer":3,"data":4} as const;
export const ROLES = ["in","out","grad","grad_in","param","buffer","update","state"] as const;
export const SEVERITIES = ["error","warning","info"] as const;
export const CLASS_FAMILIES = ["attention","norm","conv","linear","embedding","pool","recurrent","activation","regular","mlp","other0","other1","other2"] as const;
export const OP_FAMILIES = ["view","matmul","norm","index","update","math"] as const;
export const STEPS = 7 as const;
export const UNITS = {"count":{"base":1000,"names":["","k","M","B","T"]},"bytes":{"base":1024,"names":[" B"," KiB"," MiB"," GiB"," TiB"]},"time":{"base":1000,"names":[" ns"," µs"," ms"," s"]}} as const;
export const MINUTES_FROM = 60 as const;
export const DIGITS = 3 as const;
